"""Quantising against an explicit loop over groups in float64, and what happens at the edges."""

import itertools

import pytest
import torch

from kvlearn import quantization
from kvlearn.quantization import Quantized, QuantSpec, quantize

SHAPE = (2, 3, 12, 20)  # B, H, tokens, channels; groups of 4 divide both
SPECS = [
    QuantSpec(dtype, axis, group, symmetric, scale_dtype)
    for dtype, (axis, group), (symmetric, scale_dtype) in itertools.product(
        ("int8", "int4", "int2", "fp8"),
        (("token", 4), ("token", None), ("channel", 6), ("channel", None), ("tensor", 32)),
        ((False, torch.float16), (True, torch.float32)),
    )
]


def name(spec):
    return f"{spec.dtype}-{spec.axis}-{spec.quant_group}-{'sym' if spec.symmetric else 'asym'}"


every_spec = pytest.mark.parametrize("spec", SPECS, ids=name)


def draw(*shape, seed=0, dtype=torch.float32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x * torch.linspace(0.5, 4, shape[-1]) + 0.3).to(dtype)


def groups_of(x, spec):
    """Index tuples of the groups of a (B, H, T, D) tensor, each a mask of the numbers that share a scale."""
    B, H, T, D = x.shape
    if spec.axis == "tensor":
        yield torch.ones_like(x, dtype=torch.bool)
        return
    tokens, channels = (1, spec.quant_group or D) if spec.axis == "token" else (spec.quant_group or T, 1)
    for b, h in itertools.product(range(B), range(H)):
        for t, d in itertools.product(range(0, T, tokens), range(0, D, channels)):
            mask = torch.zeros_like(x, dtype=torch.bool)
            mask[b, h, t : t + tokens, d : d + channels] = True
            yield mask


def by_loop(x, spec):
    """Oracle: what comes back, one group after the other, in float64."""
    out = torch.full(x.shape, torch.nan, dtype=torch.float64)
    for mask in groups_of(x, spec):
        group = x[mask].double()
        rounded = lambda value: float(torch.tensor(float(value)).to(spec.scale_dtype))  # noqa: E731
        if spec.dtype == "fp8":
            scale = rounded(group.abs().max() / 448) or 1.0
            codes = (group / scale).clamp(-448, 448).float().to(torch.float8_e4m3fn).double()
            out[mask] = codes * scale
        elif spec.symmetric:
            most = 2 ** (spec.bits - 1) - 1
            scale = rounded(group.abs().max() / most) or 1.0
            out[mask] = (group / scale).round().clamp(-most, most) * scale
        else:
            zero = rounded(group.min())
            scale = rounded((group.max() - group.min()) / (2**spec.bits - 1)) or 1.0
            out[mask] = ((group - zero) / scale).round().clamp(0, 2**spec.bits - 1) * scale + zero
    return out


@pytest.mark.slow
@every_spec
def test_equals_a_loop_over_the_groups(spec):
    """A scale along the wrong axis, a zero that is dropped, codes that wrap round, a sign that is lost."""
    x = draw(*SHAPE)
    got, want = quantize(x, spec).dequantize(), by_loop(x, spec)
    assert got.dtype == x.dtype and got.shape == x.shape
    # Where a number lies half-way between two codes, float32 and float64 may take different ones.
    near = torch.isclose(got.double(), want, rtol=1e-5, atol=1e-5)
    assert near.double().mean() > 0.998


@every_spec
def test_the_error_is_half_a_step(spec):
    """A floor for a round, a scale for one code too many, codes chosen for a scale that is not kept."""
    if spec.dtype == "fp8":
        return
    x = draw(*SHAPE, seed=1)
    back = quantize(x, spec).dequantize()
    for mask in groups_of(x, spec):
        group = x[mask]
        codes = 2 ** (spec.bits - 1) - 1 if spec.symmetric else 2**spec.bits - 1
        spread = group.abs().max() if spec.symmetric else group.max() - group.min()
        rounding = torch.finfo(spec.scale_dtype).eps * (spread + group.abs().max())  # of the ends
        assert (back[mask] - group).abs().max() <= spread / codes * 0.5 + rounding + 1e-6


def test_fp8_keeps_a_relative_error():
    """e4m3 errs by a sixteenth of a number at most, where int8 has one step for large and small."""
    x = torch.tensor([[0.1, 1.0, 30.0, -170.0]])
    error = (quantize(x, QuantSpec("fp8", "token", 4)).dequantize() - x).abs() / x.abs()
    assert (error < 1 / 16).all()


def test_e4m3_is_clamped_before_it_is_cast(monkeypatch):
    """pytorch/ao#1912: older versions make NaN of what is beyond 448. This test's cast does, too."""
    real = torch.Tensor.to

    def old_cast(tensor, *args, **kwargs):
        if torch.float8_e4m3fn in args:
            tensor = tensor.masked_fill(tensor.abs() > 448, torch.nan)
        return real(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", old_cast)
    assert torch.tensor([500.0]).to(torch.float8_e4m3fn).to(torch.float32).isnan().all()
    # The scale, 448.1 / 448, is rounded down to 1.0 in float16: 448.1 steps.
    x = torch.tensor([[448.1, -448.1, 3.0, 0.0]])
    assert quantize(x, QuantSpec("fp8", "token", 4)).dequantize().tolist() == [[448.0, -448.0, 3.0, 0.0]]


def test_every_byte_of_e4m3_is_read_as_torch_reads_it():
    """Our own reading of the bits: a sign lost, small numbers without a leading 1, an exponent off by one."""
    codes = torch.tensor([code for code in range(256) if code & 127 != 127], dtype=torch.uint8)  # no NaN
    ours, expected = quantization._from_e4m3(codes), codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(ours.float(), expected)
    assert torch.equal(ours.signbit(), expected.signbit())  # -0.0


# Edges -----------------------------------------------------------------------------------------------


@every_spec
def test_zeros_give_zeros(spec):
    """openvinotoolkit/openvino#28326: the scale of a group of zeros is 0, and 0 / 0 is NaN."""
    assert torch.equal(quantize(torch.zeros(SHAPE), spec).dequantize(), torch.zeros(SHAPE))


@every_spec
@pytest.mark.parametrize("number", [3.0, -0.75, 0.1, 1000.25])
def test_a_constant_gives_itself(spec, number):
    """A group without spread has scale 0, too, and is not zero."""
    back = quantize(torch.full(SHAPE, number), spec).dequantize()
    assert (back - number).abs().max() <= abs(number) * torch.finfo(spec.scale_dtype).eps * 2


@every_spec
def test_a_constant_group_beside_others_is_not_spoilt(spec):
    """A guard for scale 0 that looks at the smallest scale of all, or replaces the scale where it is kept."""
    x = draw(*SHAPE, seed=2)
    x[1, 2] = 0.0
    if spec.axis != "tensor":
        assert torch.equal(quantize(x, spec).dequantize()[1, 2], torch.zeros(12, 20))


@every_spec
@pytest.mark.parametrize("size", [1e-9, 1e-30, 1e-45])
def test_tiny_numbers_give_something_as_tiny(spec, size):
    """A scale that is too small for float16 becomes 0; dividing by it gives infinities."""
    x = draw(*SHAPE, seed=3) * size
    back = quantize(x, spec).dequantize()
    assert back.isfinite().all() and back.abs().max() <= x.abs().max() * 1.2 + 1e-44


@every_spec
def test_huge_numbers_come_back_or_are_refused(spec):
    """A float16 scale beyond 65,504 is inf, and everything in its group NaN."""
    largest = spec.largest
    x = draw(*SHAPE, seed=4)
    x = x / x.abs().max() * largest * 0.99
    back = quantize(x, spec).dequantize()
    assert back.isfinite().all()
    assert (back - x).abs().max() <= largest * (1.01 if spec.bits == 2 else 0.2)
    x[0, 1, 2, 3] = largest * 1.01
    with pytest.raises(ValueError, match="takes finite numbers up to"):
        quantize(x, spec)


@every_spec
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_refused(spec, bad):
    """One NaN makes the scale of its group NaN, and with it all the group."""
    x = draw(*SHAPE)
    x[1, 0, 7, 5] = bad
    with pytest.raises(ValueError, match="x has NaN or an infinity"):
        quantize(x, spec)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes_come_back(dtype):
    """Lightning-AI/litgpt#57: what is given in bfloat16 comes back in float32 and takes twice the room."""
    x = draw(*SHAPE, dtype=dtype)
    q = quantize(x, QuantSpec("int8", "channel", 6))
    assert q.dequantize().dtype == dtype and q.dequantize(torch.float32).dtype == torch.float32
    assert torch.allclose(q.dequantize().double(), x.double(), atol=0.1)
    assert torch.equal(q.codes, quantize(x.double(), QuantSpec("int8", "channel", 6)).codes)


def test_channels_that_fill_no_whole_byte_are_padded():
    """An odd number of 4-bit codes, or of 2-bit codes: the last ones must not be lost."""
    x = draw(2, 3, 4, 7)
    for dtype, size in (("int4", 4), ("int2", 2)):
        q = quantize(x, QuantSpec(dtype, "channel", 2, scale_dtype=torch.float32))
        assert q.codes.shape == (2, 3, 4, size)
        assert torch.allclose(
            q.dequantize().double(), by_loop(x, QuantSpec(dtype, "channel", 2, scale_dtype=torch.float32)),
            atol=1e-5,
        )  # fmt: skip


def test_x_is_not_changed_and_not_kept():
    """Dequantising works in place, and what it works in must be its own."""
    x = draw(*SHAPE)
    before = x.clone()
    q = quantize(x, QuantSpec("int8", "token", 4))
    first = q.dequantize()
    assert torch.equal(x, before) and torch.equal(q.dequantize(), first)
    assert q.codes.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_channels_save_what_a_large_channel_takes_from_tokens():
    """Scales along the wrong axis: one large channel takes the precision of all that share its scale."""
    x = torch.randn(1, 1, 64, 32, generator=torch.Generator().manual_seed(0))
    x[..., 3] *= 50
    others = [d for d in range(32) if d != 3]
    error = {
        axis: (quantize(x, QuantSpec("int4", axis, 32)).dequantize() - x)[..., others].norm()
        for axis in ("token", "channel")
    }
    assert error["channel"] < error["token"] / 5


# Padding -----------------------------------------------------------------------------------------------


@every_spec
@pytest.mark.parametrize("junk", [1e4, torch.nan, -torch.inf])
def test_padding_has_no_say(spec, junk):
    """A padded slot with large numbers in it: no token may come back otherwise than without it."""
    x = draw(*SHAPE, seed=5)
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[0, :7] = False  # one whole group of 6 tokens, and one token of the next
    valid[1, 3] = False
    keep = valid[:, None, :, None].expand(SHAPE)
    spoilt = x.masked_fill(~keep, junk)
    got = quantize(spoilt, spec, valid).dequantize()
    other = quantize(x.masked_fill(~keep, 0.0), spec, valid).dequantize()
    assert torch.equal(got, other) and got.isfinite().all()
    if spec.axis == "channel" and spec.quant_group:
        alone = quantize(x[0, :, 7:].contiguous(), QuantSpec(spec.dtype, "channel", 5, spec.symmetric,
                                                             spec.scale_dtype))  # fmt: skip
        assert torch.equal(got[0, :, 7:], alone.dequantize())


def test_padding_is_said_for_each_row_and_token():
    """A mask of another shape that broadcasts."""
    x = draw(*SHAPE)
    for valid in (
        torch.ones(2, 1, dtype=torch.bool),
        torch.ones(2, 12),
        torch.ones(12, 2, dtype=torch.bool),
    ):
        with pytest.raises(ValueError, match="valid is boolean"):
            quantize(x, SPECS[0], valid)


# Bytes -------------------------------------------------------------------------------------------------


@every_spec
def test_predicted_bytes_are_measured(spec):
    """sgl-project/sglang#22777: codes that take as much as before, and scales that nobody counts."""
    x = draw(*SHAPE)
    q = quantize(x, spec)
    measured = sum(t.untyped_storage().nbytes() for t in q.tensors)
    heads = 1 if spec.axis == "tensor" else 2 * 3
    tokens = 2 * 3 * 12 if spec.axis == "tensor" else 12
    assert q.used_bytes == measured == heads * spec.bytes_for(tokens, 20)


@pytest.mark.parametrize(
    "spec, bits",
    [
        (QuantSpec("int4"), 5.0),
        (QuantSpec("int4", "channel"), 5.0),
        (QuantSpec("int2"), 3.0),
        (QuantSpec("int2", quant_group=64), 2.5),
        (QuantSpec("int2", quant_group=128), 2.25),
        (QuantSpec("int8", quant_group=128), 8.25),
        (QuantSpec("int4", symmetric=True), 4.5),
        (QuantSpec("int8", symmetric=True), 8.5),
        (QuantSpec("int4", scale_dtype=torch.float32), 6.0),
        (QuantSpec("fp8"), 8.5),
    ],
)
def test_effective_bits(spec, bits):
    """A 2-bit cache in groups of 32 takes 3 bits a number: 5.33 times smaller than float16, not 8."""
    assert spec.bits_per_number() == bits
    x = draw(2, 3, 256, 128)
    q = quantize(x, spec)
    assert sum(t.untyped_storage().nbytes() for t in q.tensors) * 8 / x.numel() == bits


# Tokens that stay ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("spec", [s for s in SPECS if s.axis != "tensor"], ids=name)
def test_cut_keeps_the_very_numbers(spec):
    """A cut in the middle of a group that takes a scale too few, or quantises what is left again."""
    x = draw(*SHAPE)
    q = quantize(x, spec)
    for tokens in range(13):
        pieces = q.cut(tokens)
        assert sum(piece.tokens for piece in pieces) == tokens and len(pieces) <= 2
        for kept in (piece for p in pieces for piece in p.tensors):
            assert kept.untyped_storage().nbytes() == kept.nbytes  # not a slice of the old storage
        if tokens:
            back = torch.cat([piece.dequantize() for piece in pieces], dim=2)
            assert torch.equal(back, q.dequantize()[:, :, :tokens])
            for again in range(1, pieces[-1].tokens):
                twice = torch.cat([part.dequantize() for part in pieces[-1].cut(again)], dim=2)
                assert torch.equal(twice, pieces[-1].dequantize()[:, :, :again])


def test_tokens_follow_each_other():
    """Joined codes under the scales of the first part."""
    for spec in (
        QuantSpec("int4", "channel", 4),
        QuantSpec("int8", "token", 5),
        QuantSpec("fp8", "token", None),
    ):
        x = draw(2, 3, 12, 20)
        first, second = quantize(x[:, :, :8], spec), quantize(x[:, :, 8:], spec)
        both = first.followed_by(second)
        assert torch.equal(both.dequantize(), quantize(x, spec).dequantize())
        assert both.used_bytes == first.used_bytes + second.used_bytes
    other = quantize(x, QuantSpec("int4", "channel", 4))
    with pytest.raises(ValueError, match="follow each other"):
        first.followed_by(other)
    whole = quantize(x, QuantSpec("int4", "channel", None))
    with pytest.raises(ValueError, match="follow each other"):
        whole.followed_by(whole)


def test_rows_are_taken_with_their_scales():
    """huggingface/transformers#45510: codes are reordered and their scales are not."""
    x = draw(*SHAPE) * torch.tensor([1.0, 10.0])[:, None, None, None]
    for spec in (QuantSpec("int4", "channel", 4), QuantSpec("int8", "token", 5, symmetric=True)):
        q = quantize(x, spec)
        taken = q.take_rows(torch.tensor([1, 1, 0]))
        assert torch.equal(taken.dequantize(), q.dequantize()[[1, 1, 0]])
    for call in (lambda q: q.take_rows(torch.tensor([0])), lambda q: q.cut(3), lambda q: q.followed_by(q)):
        with pytest.raises(ValueError, match="tensor"):
            call(quantize(x, QuantSpec("int8", "tensor")))


# What is given -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x, spec, words",
    [
        (
            torch.ones(2, 3, 12, 20),
            QuantSpec("int4", "token", 32),
            "20 channels do not divide into groups of 32",
        ),
        (
            torch.ones(2, 3, 13, 20),
            QuantSpec("int4", "channel", 4),
            "13 tokens do not divide into groups of 4",
        ),
        (torch.ones(3, 4), QuantSpec("int4", "channel", 10**30), "4 channels|3 tokens"),
        (torch.ones(20), QuantSpec("int4"), r"shape \(20,\)"),
        (torch.ones(3, 4, dtype=torch.long), QuantSpec("int4"), "floating-point tensor"),
        (torch.ones(3, 4).to(torch.float8_e4m3fn), QuantSpec("int4"), "floating-point tensor"),
        ([[1.0]], QuantSpec("int4"), "a list"),
        (torch.ones(3, 4).to_sparse(), QuantSpec("int4"), "got a tensor of layout torch.sparse_coo"),
        (torch.ones(3, 4, device="meta"), QuantSpec("int4"), "got a tensor on meta"),
        (torch.ones(3, 4), "int4", "A QuantSpec says how"),
        (torch.ones(0, 4), QuantSpec("int4", "tensor"), "nothing to quantise"),
    ],
)
def test_what_cannot_be_quantised_is_refused(x, spec, words):
    """A group that does not divide its axis would be cut, or shared with the next row."""
    with pytest.raises(ValueError, match=words):
        quantize(x, spec)


def test_what_a_quantized_is_asked_for_may_be_wrong_too():
    """A cut beyond the end, a whole-number dtype that would floor everything, sizes below 0."""
    q = quantize(torch.ones(2, 3, 12, 20), QuantSpec("int4", "token", 4))
    for call, words in (
        (lambda: q.cut(13), "12 tokens to keep from; got 13"),
        (lambda: q.cut(-1), "got -1"),
        (lambda: q.cut(1.5), "tokens is a whole number; got 1.5"),
        (lambda: q.cut("x"), "tokens is a whole number; got 'x'"),
        (lambda: q.take_rows(torch.tensor([0, 2])), r"There are rows 0 to 1; got \[0, 2\]"),
        (lambda: q.take_rows(torch.tensor([-1])), r"There are rows 0 to 1; got \[-1\]"),
        (lambda: q.take_rows([0]), "index is a tensor of row numbers with one axis; got a list"),
        (lambda: q.take_rows(torch.tensor([0.0])), "got torch.float32"),
        (lambda: q.followed_by(None), "What follows a Quantized is one too; got a NoneType"),
        (lambda: q.dequantize(torch.int32), "floating-point dtype; got torch.int32"),
        (lambda: q.dequantize("float16"), "got 'float16'"),
        (lambda: quantize(torch.ones(2, 3, 12, 20), q.spec, "all"), "valid is boolean"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize(
    "other",
    [torch.ones(1, 3, 4, 20), torch.ones(2, 3, 4, 24), torch.ones(2, 3, 4, 20, dtype=torch.float64)],
)
def test_tokens_of_other_rows_do_not_follow(other):
    """Codes of float64 behind those of float32 would come back as float32, without a word."""
    q = quantize(torch.ones(2, 3, 12, 20), QuantSpec("int4", "token", 4))
    with pytest.raises(ValueError, match="the same rows, heads, channels and dtype; got .2, 3, 20, torch"):
        q.followed_by(quantize(other, q.spec))


def test_no_tokens_are_no_bytes():
    """A reshape that cannot guess a size of nothing."""
    for spec in (QuantSpec("int4", "channel", 4), QuantSpec("int4", "token", 4)):
        q = quantize(torch.ones(2, 3, 0, 20), spec)
        assert q.used_bytes == 0 and q.dequantize().shape == (2, 3, 0, 20) and q.tokens == 0


def test_gradients_stop():
    """Codes have no gradient; a graph that is kept would keep the activations."""
    x = torch.ones(3, 4, requires_grad=True)
    q = quantize(x, QuantSpec("int8", "token", 4))
    assert isinstance(q, Quantized) and not q.dequantize().requires_grad


def test_the_largest_number_of_e4m3():
    """A clamp at another format's end: e5m2 reaches 57,344, e4m3fnuz 240."""
    assert quantization.E4M3_MAX == torch.finfo(torch.float8_e4m3fn).max
