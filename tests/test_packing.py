"""Codes of a few bits in whole bytes, against an explicit loop over bits."""

import pytest
import torch

from kvlearn.packing import pack, unpack


def pack_by_bits(codes, bits):
    """Oracle: write the codes one bit after the other, lowest first, and cut the row into bytes."""
    row = [code >> place & 1 for code in codes for place in range(bits)]
    row += [0] * (-len(row) % 8)
    return [sum(bit << i for i, bit in enumerate(row[start : start + 8])) for start in range(0, len(row), 8)]


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("n", [1, 3, 4, 7, 12])
def test_bytes_are_those_of_a_loop_over_bits(bits, n):
    """Codes in the wrong half of a byte, or a last byte that is not full and is lost."""
    codes = torch.randint(2**bits, (2, 5, n), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
    packed = pack(codes, bits)
    assert packed.shape == (2, 5, -(-n * bits // 8)) and packed.dtype == torch.uint8
    assert packed.flatten(0, 1).tolist() == [pack_by_bits(row, bits) for row in codes.flatten(0, 1).tolist()]
    assert torch.equal(unpack(packed, bits, n), codes)


def test_every_code_comes_back_beside_every_other():
    """A code that runs into its neighbour: only some pairs show it."""
    pairs = torch.cartesian_prod(torch.arange(16), torch.arange(16)).to(torch.uint8)
    packed = pack(pairs, 4)
    assert packed.flatten().unique().numel() == 256
    assert torch.equal(unpack(packed, 4, 2), pairs)
    assert pack(torch.tensor([1, 2], dtype=torch.uint8), 4).item() == 0x21


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_codes_come_back_as_numbers(bits):
    """A dtype that is forgotten at 8 bits, where nothing is unpacked; numbers in the bytes' own memory."""
    codes = torch.arange(2**bits, dtype=torch.uint8)[None]
    packed = pack(codes, bits)
    numbers = unpack(packed, bits, 2**bits, torch.float32)
    assert numbers.dtype == torch.float32 and numbers.tolist() == [[float(i) for i in range(2**bits)]]
    numbers.zero_()
    assert torch.equal(unpack(packed, bits, 2**bits), codes)


def test_bytes_fall():
    """sgl-project/sglang#22777: codes that are kept one a byte save nothing at all."""
    codes = torch.zeros(3, 64, dtype=torch.uint8)
    assert [pack(codes, bits).untyped_storage().nbytes() for bits in (8, 4, 2)] == [192, 96, 48]


@pytest.mark.parametrize(
    "codes, bits, words",
    [
        (torch.tensor([16], dtype=torch.uint8), 4, "0 to 15"),
        (torch.tensor([3, 4], dtype=torch.uint8), 2, "0 to 3"),
        (torch.tensor([1], dtype=torch.uint8), 3, "8, 4 or 2 bits; got 3"),
        (torch.tensor([1]), 4, "uint8"),
        (torch.tensor([-1], dtype=torch.int8), 4, "uint8"),
        (torch.tensor([1], dtype=torch.uint8), 4.0, "8, 4 or 2 bits; got 4.0"),
        ([1, 2], 4, "list"),
        (torch.tensor([1], dtype=torch.uint8).to_sparse(), 4, "layout torch.sparse_coo"),
    ],
)
def test_what_does_not_fit_is_refused(codes, bits, words):
    """A code of too many bits changes its neighbour without a word; a sign bit does, too."""
    with pytest.raises(ValueError, match=words):
        pack(codes, bits)


def test_unpack_refuses_another_number_of_codes():
    """Bytes read as more codes than were written, or fewer."""
    packed = torch.zeros(2, 3, dtype=torch.uint8)
    for n, bits in ((4, 4), (7, 4), (2, 8), (4, 8)):
        with pytest.raises(ValueError, match=f"{n} codes of {bits} bits take"):
            unpack(packed, bits, n)


@pytest.mark.parametrize("bits", [8, 4])
def test_unpack_refuses_what_is_no_number_of_codes(bits):
    """At 8 bits, where nothing is unpacked, any n gave all codes; a dtype by name is no dtype."""
    packed = torch.zeros(2, 3, dtype=torch.uint8)
    for n in ("16", None, 3.0, float("nan"), True):
        with pytest.raises(ValueError, match="n is a whole number; got"):
            unpack(packed, bits, n)
    with pytest.raises(ValueError, match="n must be at least 0; got -1"):
        unpack(packed, bits, -1)
    with pytest.raises(ValueError, match="dtype is one of torch's, such as .* got 'float32'"):
        unpack(packed, bits, 3 * 8 // bits, "float32")
