"""The napkin's checks: any unit a person would write, and what is told about one that is not."""

import numpy
import pytest
import torch

from kvlearn.checks import REGISTRY, judge
from kvlearn.checks.engine import Case, WrongAnswer
from kvlearn.checks.lesson_05.amounts import interval, observe_size
from kvlearn.sizing.units import show_bytes

SIZES = ["bytes_per_token", "cache_size", "hybrid_bytes", "latent_bytes", "quantised_bytes"]
WRITINGS = {
    "a float": float,
    "GiB": lambda n: f"{n / 2**30:.9g} GiB",
    "GB without a blank": lambda n: f"{n / 10**9:.9g}GB",
    "MiB with commas": lambda n: f"{n / 2**20:,.6f} MiB",
    "a pair": lambda n: (n / 1000, "kB"),
    "bytes in words": lambda n: f"{n:,} bytes",
    "small letters": lambda n: f"{n / 2**10:.3f} kib",
    "a power of ten": lambda n: f"{n / 10**6:.6e} MB",
    "both units": lambda n: show_bytes(n, 6),
    "about": lambda n: f"~{n / 2**10:,.3f} KiB",
    "with its token": lambda n: f"≈ {n / 10**3:,.3f} kB / token",
    "numpy": lambda n: numpy.float64(n),
}


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("seed", [0, 5, 11])
def test_a_right_size_is_right_in_every_unit(name, writing, seed):
    """A checker that knows one unit only, or that takes a rounded size for a wrong one."""
    exercise = REGISTRY[name]
    result = judge(exercise, lambda *sizes: WRITINGS[writing](exercise.reference(*sizes)), seed)
    assert result.passed, result.message


@pytest.mark.parametrize("name", SIZES)
def test_a_mistake_has_its_name_in_every_unit(name):
    """A rounded answer that is told "wrong" where its mistake is known."""
    exercise = REGISTRY[name]
    for misconception in exercise.misconceptions:
        sizes = [misconception.answer(*case.inputs.values()) for case in exercise.cases(_generator())]
        if isinstance(sizes[0], str):
            continue  # wrong in its unit, and so in this one only
        if 0 in sizes:
            continue  # no digits can be written of it
        for write in (lambda n: f"{n / 2**20:.5f} MiB", lambda n: f"{n / 10**6:,.5f} MB"):
            result = judge(exercise, lambda *sizes, w=write, m=misconception: w(m.answer(*sizes)), 3)
            assert result.misconception == misconception.name, result.message


def _generator():
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("name", [e for e in REGISTRY if REGISTRY[e].lesson == 5])
def test_another_seed_is_another_sheet(name):
    """The same numbers every time: an answer that was read off once would pass."""
    drawn = [
        repr([case.inputs for case in REGISTRY[name].cases(torch.Generator().manual_seed(seed))])
        for seed in range(5)
    ]
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(
    "value, said",
    [
        ("80G", "has the unit 'G'. Say which is meant: GiB is 2"),
        ("lots", "'lots' is not a size"),
        ("", "'' is not a size"),
        ("12 34 GB", "is not a size"),
        ("-3 GB", "is not a size"),
        (-3, "never negative; yours is -3"),
        (1.26, 'not a whole number of bytes. If it counts another unit, say so: "1.26 GiB"'),
        (float("nan"), "yours is a float: nan"),
        (float("inf"), "yours is a float: inf"),
        ([1], "yours is a list"),
        ({"GiB": 1}, "yours is a dict"),
        (True, "yours is a bool"),
        ((1, "GiB", 2), "yours is a tuple"),
        ("9" * 999 + " GB", "is not a size"),
        (-5.0, "never negative; yours is -5."),
        (torch.empty((), device="meta"), "yours is a tensor of shape ()"),
        ("1.56 GiB (1.56 GB)", "says two sizes that are not the same"),
        ("1.56 GiB (1.68 G)", "has the unit 'G'"),
        ("1.56 GiB (1.68 GB) or so", "is not a size"),
    ],
)
def test_what_is_no_size_is_told_so(value, said):
    """The learner's text judged as a wrong number, or an error of the checker's own."""
    with pytest.raises(WrongAnswer) as error:
        interval(value)
    assert said in str(error.value)
    message = judge(REGISTRY["cache_size"], lambda token, prompt, new, batch: value).message
    assert said in message and "Error" not in message


def test_rounding_goes_half_of_the_last_digit_and_no_further():
    """A checker that takes 1.3 GiB for 1.26, and one that takes 1.2 for it as well."""
    low, high = interval("1.3 GiB")
    assert (100 * low, 100 * high) == (125 * 2**30, 135 * 2**30)
    assert interval("40 GiB") == (39.5 * 2**30, 40.5 * 2**30)
    assert interval("163,840 B") == (163840, 163840) == interval(163840) == interval("163840")


def test_gb_for_gib_is_seen_where_it_is_rounded():
    """ "1.7 GiB" for 1.56 GiB, as a blog says it: not the exact misconception, and told all the same."""
    for name, exercise in ((name, REGISTRY[name]) for name in SIZES):
        said = judge(exercise, lambda *sizes, e=exercise: f"{e.reference(*sizes) / 10**9:.9f} GiB").message
        assert "GB and GiB were mixed up" in said or "The step from GB to GiB is 7 percent." in said, name
        said = judge(exercise, lambda *sizes, e=exercise: f"{e.reference(*sizes) / 2**10:.1f} kB").message
        assert "The step from kB to KiB is 2 percent." in said, name
    exercise = REGISTRY["cache_size"]
    result = judge(exercise, lambda *sizes: round(exercise.reference(*sizes) / 2**30) + 1)
    assert "A number without a unit counts as bytes." in result.message


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("text", ["0 GiB", "0.00 TiB", "0e99 GiB", "about 0.0 GB"])
def test_zeros_are_not_a_size(name, text):
    """ "0 GiB" stands for everything below half a GiB, and so it was right."""
    for seed in range(5):
        message = judge(REGISTRY[name], lambda *sizes: text, seed).message
        assert f"{text!r} is too coarse" in message and "Write at least three digits" in message


@pytest.mark.parametrize("name", SIZES)
def test_two_digits_are_too_few_unless_they_say_it_all(name):
    """ "1.6 GiB" is right for sizes that are six percent apart; "72 KiB" may be the size to the byte."""
    exercise = REGISTRY[name]
    for seed in range(5):
        message = judge(exercise, lambda *sizes: f"{exercise.reference(*sizes):.1e} B", seed).message
        assert "is too coarse: it stands for every size from" in message
    exact = Case({"n": 0}, "the size itself")
    for text in ("72 KiB", "~72 KiB", "7.2e1 KiB", "72.0 KiB (74 kB)"):
        assert observe_size(lambda n: 72 * 2**10, ())(lambda n, t=text: t, exact) == 72 * 2**10


HIDDEN = {
    "cache_size": lambda token, prompt, new, batch: f"{token * (prompt + new) * batch / 2**30:.2f} GiB",
    "quantised_bytes": lambda tokens, dim, bits, group, residual: (
        f"{REGISTRY['quantised_bytes'].reference(tokens, dim, bits, group, residual - 1) / 2**10:.0f} KiB"
    ),
    "hybrid_bytes": lambda windows, heads, dim, tokens: (
        f"{sum(tokens if w is None else min(w + 1, tokens) for w in windows) * heads * dim / 2**18:.3g} MiB"
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_rounding_hides_no_mistake(name):
    """One token too many, rounded to the same GiB as the right size: the very thing that is asked."""
    for seed in range(20):
        result = judge(REGISTRY[name], HIDDEN[name], seed)
        assert not result.passed, (seed, result.message)
    assert "Write more digits, or the bytes." in judge(REGISTRY["cache_size"], HIDDEN["cache_size"]).message


def test_what_is_nearly_right_is_told_in_bytes():
    """ "1 times as much" for a size that is one token off; -5 bytes "of it"."""
    exercise = REGISTRY["bytes_per_token"]
    assert "1 bytes too many" in judge(exercise, lambda *sizes: exercise.reference(*sizes) + 1).message
    message = judge(exercise, lambda *sizes: exercise.reference(*sizes) * 3 + 1).message
    assert "3 times as much" in message and "too many" not in message


@pytest.mark.parametrize(
    "answer, misconception",
    [
        (
            lambda m, w, b, t, n: max(m - w, 0) // (-(-t // 16) * 16 * b),
            "every block was taken to have 16 tokens",
        ),
        (lambda m, w, b, t, n: max(m - w, 0) // ((t // n + 1) * n * b), None),
        (lambda m, w, b, t, n: max(max(m - w, 0) // (-(-t // n) * n * b) - 1, 0), None),
        (lambda m, w, b, t, n: max(m - w, 0) // ((t + n - 1) * b), None),
    ],
)
def test_sequences_that_nearly_fit_as_many(answer, misconception):
    """Blocks of 16 called no rounding, one sequence too few called one block more; t // block + 1 passed."""
    for seed in range(20):
        result = judge(REGISTRY["sequences_that_fit"], answer, seed)
        assert not result.passed and result.misconception == misconception, (seed, result.message)


def test_a_config_or_a_list_that_was_changed_is_seen():
    """Tensors alone were compared: the caller's list came back overwritten, and the answer was right."""

    def overwrites(windows, num_kv_heads, head_dim, tokens):
        for i, window in enumerate(windows):
            windows[i] = tokens if window is None else min(window, tokens)
        return sum(windows) * 4 * num_kv_heads * head_dim

    def fills_in(config):
        c = config.get("text_config", config)
        heads = c["num_attention_heads"]
        c["head_dim"] = c.get("head_dim") or c["hidden_size"] // heads
        return c["num_hidden_layers"], c.get("num_key_value_heads") or heads, c["head_dim"]

    for name, answer in (("hybrid_bytes", overwrites), ("read_sizes", fills_in)):
        message = judge(REGISTRY[name], answer).message
        assert "in place" in message and "work on a copy of it" in message


def test_a_number_that_python_will_not_write():
    """An answer of five thousand digits ended in the checker's own traceback."""
    with pytest.raises(WrongAnswer, match="never negative; yours is a number of about 5,000 digits"):
        interval(-(10**5000))
    for name in (*SIZES, "sequences_that_fit", "crossover_batch"):
        assert "digits" in judge(REGISTRY[name], lambda a, b, c, d, e=0, f=0: 10**5000).message
