"""benchmarks/recall: schemes give what the library's caches give, samples are kept, figures are right."""

import json

import numpy as np
import pytest
import torch

from benchmarks import recall as benchmark
from benchmarks import recall_summary as summary
from benchmarks.recall_schemes import SCHEMES, Context, Scheme, blurred, quantised_tokens, rounded
from kvlearn import Decoder, DecoderConfig
from kvlearn.cache.quantized import QuantizedCache
from kvlearn.quantization import QuantSpec, quantize

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}
CONFIG = DecoderConfig(
    vocab_size=53,
    hidden_size=24,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=40,
)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("axis", ["token", "channel"])
def test_rounding_is_what_quantize_does(bits, axis):
    """Three bits have no codes in the library. Would catch a simulation that is kinder or harsher than codes
    are: at the widths that the library has, both give the same numbers."""
    x = random(3, 2, 5, 96, 64) * random(64, seed=1).exp()
    x[0, 0, 0, :32] = 0.25  # a group without spread
    expected = quantize(x.flatten(0, 1), QuantSpec(f"int{bits}", axis)).dequantize().view_as(x)
    assert torch.equal(rounded(x, bits, axis), expected)


def test_fewer_bits_blur_more():
    """Would catch a kind that is another one under its name."""
    x = random(2, 1, 3, 64, 32)
    errors = [
        float((blurred(x, kind, "token") - x).square().mean()) for kind in ("int8", "int4", "int3", "int2")
    ]
    assert errors == sorted(errors) and errors[0] < 1e-4 and 20 * errors[0] < errors[1]
    assert errors[2] < 6 * errors[1] and errors[3] < 8 * errors[2]


def test_one_scale_a_tensor_crosses_neither_layers_nor_rows():
    """Would catch a scale that a loud layer, or another text of the batch, takes part in."""
    x = random(2, 3, 2, 7, 32)
    loud = x.clone()
    loud[1, 2] *= 1000
    assert torch.equal(blurred(x, "int4", "tensor")[0], blurred(loud, "int4", "tensor")[0])
    assert torch.equal(blurred(x, "int4", "tensor")[1, :2], blurred(loud, "int4", "tensor")[1, :2])


@pytest.mark.parametrize(
    ("length", "axis", "residual", "tokens"),
    [
        (128, "token", 0, 128),
        (130, "token", 32, 98),
        (128, "channel", 32, 96),
        (130, "channel", 32, 96),
        (127, "channel", 32, 64),
        (31, "channel", 0, 0),
        (20, "token", 32, 0),
    ],
)
def test_how_many_tokens_are_quantised(length, axis, residual, tokens):
    """Would catch a residual that is one off, and part of a group quantised."""
    assert quantised_tokens(length, axis, residual) == tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["fp8 token 0", "int8 kivi 32", "int4 token 32", "int4 kivi 0", "int2 kivi 128", "int2 token 0 keys",
     "int2 kivi 0 values"],
)  # fmt: skip
def test_a_scheme_is_the_librarys_cache(name):
    """Would catch a figure that is not of what the lesson's own cache does: the same logits."""
    scheme = BY_NAME[name]
    torch.manual_seed(0)
    model = Decoder(CONFIG).requires_grad_(False)
    context, rest = torch.randint(53, (1, 165)), torch.randint(53, (1, 7))
    axes = {side: scheme.axis(side) for side in ("keys", "values")}
    specs = {side: axis and QuantSpec(scheme.kind, axis) for side, axis in axes.items()}
    cache = QuantizedCache(CONFIG, residual=scheme.residual, **specs)
    model(context, cache)
    expected = model(rest, cache)
    found = {scheme.name: logits for scheme, (logits,) in benchmark.after(model, context, rest)}
    assert set(found) == set(BY_NAME)
    assert torch.allclose(found[name], expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


def test_each_rest_follows_the_context_alone():
    """Would catch a second question that sees the first, and rows of schemes that are swapped."""
    torch.manual_seed(0)
    model = Decoder(CONFIG).requires_grad_(False)
    context, one, two = (torch.randint(53, (2, length)) for length in (40, 3, 5))
    both = {scheme.name: rests for scheme, rests in benchmark.after(model, context, one, two)}
    alone = {scheme.name: rests for scheme, rests in benchmark.after(model, context, two, rows=1000)}
    exact = model(torch.cat((context, two), dim=1))[:, 40:]
    assert torch.allclose(both["exact"][1], exact, atol=1e-5)
    for name in BY_NAME:
        assert torch.allclose(both[name][1], alone[name][0], atol=1e-5)
    assert not torch.allclose(both["int2 token 0"][1], exact, atol=1e-2)


def test_the_schemes_are_all_there():
    """Would catch a scheme that the record lacks, or two under one name."""
    assert len(BY_NAME) == len(SCHEMES) == 1 + 5 * 2 * 3 + 2 + 4
    assert BY_NAME["int2 kivi 32"].bits() == 3.0 and BY_NAME["int4 token 0"].bits() == 5.0
    assert BY_NAME["fp8 token 0"].bits() == 8.5 and BY_NAME["int8 tensor"].bits() == 8.0
    exact = Context(random(2, 1, 3, 128, 64), random(2, 1, 3, 128, 64, seed=1))
    assert [s.name for s in SCHEMES if exact.is_exact(s)][:2] == ["exact", "fp8 token 128"]
    keys_only = exact.kept(Scheme("int2", "token", 0, "keys"))
    assert torch.equal(keys_only[1], exact.exact["values"])
    assert not torch.allclose(keys_only[0], exact.exact["keys"], atol=1e-2)


# Samples and figures ---------------------------------------------------------------------------------


def test_a_killed_run_goes_on(tmp_path):
    """Would catch a line that was cut short and breaks every later run, and samples of two setups mixed."""
    path = tmp_path / "samples.jsonl"
    assert benchmark.resume(path, {"torch": "1"}) == []
    with path.open("a") as file:
        file.write(json.dumps({"seed": 3}) + "\n" + '{"seed": 4, "sch')
    assert benchmark.resume(path, {"torch": "1"}) == [{"seed": 3}]
    with path.open("a") as file:
        file.write(json.dumps({"seed": 4}) + "\n")
    assert benchmark.resume(path, {"torch": "1"}) == [{"seed": 3}, {"seed": 4}]
    with pytest.raises(SystemExit, match="is of another setup"):
        benchmark.resume(path, {"torch": "2"})


def test_the_interval_of_a_share():
    """Would catch an interval of no width at 24 in 24. Values from Wilson's formula in closed form."""
    z = 1.959964
    assert summary.wilson(24, 24) == [pytest.approx(24 / (24 + z**2), abs=1e-5), 1.0]
    assert summary.wilson(0, 12) == [0.0, pytest.approx(z**2 / (12 + z**2), abs=1e-5)]
    low, high = summary.wilson(6, 12)
    assert low + high == pytest.approx(1) and high - low == pytest.approx(z / (12 + z**2) ** 0.5, abs=1e-4)


def test_the_interval_of_a_mean():
    """Would catch the spread of samples in place of that of their mean: near 2 x 1.96 x sd / sqrt(n)."""
    samples = np.random.default_rng(1).normal(5, 2, size=400)
    low, high = summary.bootstrap(samples)
    assert high - low == pytest.approx(2 * 1.96 * samples.std() / 20, rel=0.1)
    assert low < samples.mean() < high and summary.bootstrap([3, 3, 3]) == [3, 3]


def test_lost_and_gained_are_counted_in_pairs():
    """Would catch a loss and a gain that cancel and are reported as no change."""
    cell = summary.passkey_cell([1, 0, 1, 0], [-0.1, -2, -0.2, -3], ([1, 1, 0, 0], [-0.1, -1, -0.2, -3]))
    assert (cell["recall"], cell["lost"], cell["gained"], cell["samples"]) == (0.5, 1, 1, 4)
    assert cell["log_probability_change"] == -0.25 and cell["log_probability"] == -1.325
    low, high = cell["log_probability_change_interval"]
    assert low <= -0.25 <= high == 0


def test_perplexities_are_compared_window_by_window():
    """Would catch a mean of perplexities, and an interval of the ratio with the windows' own spread in it."""
    exact = [1.0, 2.0, 3.0]
    cell = summary.perplexity_cell([loss + 0.1 for loss in exact], exact)
    assert cell["perplexity"] == pytest.approx(np.exp(2.1), abs=1e-4)
    assert cell["ratio"] == pytest.approx(np.exp(0.1), abs=1e-4)
    assert cell["ratio_interval"] == pytest.approx([np.exp(0.1)] * 2, abs=1e-4)


@pytest.mark.slow
def test_figures_are_those_of_their_scheme_and_length():
    """Would catch a length's samples under another length, and seeds that do not say whose numbers follow."""
    samples = [
        {"probe": "passkey", "length": length, "seed": seed, "wall_seconds": 2, "processor_seconds": 1,
         "schemes": {name: [name != "int2 token 0" or seed == 0, -length, seed + 1.0] for name in BY_NAME}}
        for seed in (1, 0) for length in benchmark.SAMPLES
    ] + [
        {"probe": "pairs", "length": pairs, "seed": 0, "wall_seconds": 2, "processor_seconds": 1,
         "schemes": {name: [0.5 if name == "int4 tensor" else 1.0] * 3 for name in BY_NAME}}
        for pairs in benchmark.TEXTS
    ]  # fmt: skip
    figures = benchmark.figures(samples, {"filler": {}, "recall_model_sha256": "0"})
    assert figures["passkey"]["int2 token 0"]["512"]["each_right"] == [1, 0]
    assert figures["passkey"]["exact"]["1024"]["log_probability"] == -1024
    assert figures["perplexity"]["exact"]["128"]["each_loss"] == [1.0, 2.0]
    assert figures["seeds"]["passkey"]["512"] == [0, 1] and figures["complete"] is False
    assert figures["pairs"]["int4 tensor"]["64"]["change"] == -0.5
    assert figures["wall_seconds"] == 2 * len(samples)
    text = summary.as_json(figures)
    assert json.loads(text) == json.loads(json.dumps(figures))
    assert any('"samples"' in line and '"each_right"' in line for line in text.splitlines())
    rows = [line for line in summary.table(figures).splitlines() if line.startswith("| int2 token 0 |")]
    assert rows[0].startswith("| int2 token 0 | 3 | 0.50 | 0.50 | 0.50 | 0.50 | 4.48 |") and len(rows) == 2


def test_the_record_is_that_of_these_schemes():
    """Would catch a record of a run that ended early, or of other schemes than the lesson names."""
    record = json.loads((benchmark.HERE / "recall.json").read_text())
    assert record["complete"] and list(record["schemes"]) == list(BY_NAME)
    for probe, sizes in (("passkey", benchmark.SAMPLES), ("pairs", benchmark.TEXTS)):
        for name in BY_NAME:
            counts = {int(size): cell["samples"] for size, cell in record[probe][name].items()}
            assert counts == sizes
    assert record["filler"] == benchmark.setup()["filler"]  # the text that ships is the one that was measured
    assert len(record["commit"]) == 40
