"""pack_int4 and unpack_int4: two signed codes in a byte. The oracles write numbers in base 16."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception

PACKED_AXES = {"codes": "head token channel", "return": "head token byte"}
UNPACKED_AXES = {"packed": "head token byte", "return": "head token channel"}


def pack_int4(codes):
    """Oracle: the byte of codes a, b is the number b * 16 + a, with -1 for 15, -8 for 8."""
    rows = codes.flatten(0, -2).tolist()
    packed = [[(b % 16) * 16 + a % 16 for a, b in zip(row[::2], row[1::2], strict=True)] for row in rows]
    return torch.tensor(packed, dtype=torch.uint8).reshape(*codes.shape[:-1], -1)


def unpack_int4(packed):
    """Oracle: the two digits of each byte, and 8 to 15 stand for -8 to -1."""
    rows = packed.flatten(0, -2).tolist()
    digits = [[digit for byte in row for digit in (byte % 16, byte // 16)] for row in rows]
    codes = [[digit - 16 if digit > 7 else digit for digit in row] for row in digits]
    return torch.tensor(codes, dtype=torch.int8).reshape(*packed.shape[:-1], -1)


def _draw(generator, *shape):
    return torch.randint(-8, 8, shape, generator=generator, dtype=torch.int8)


def _every_pair():
    pairs = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8)).to(torch.int8)
    return pairs.reshape(1, 8, 64)


def _pack_cases(generator):
    return [
        Case({"codes": _draw(generator, 2, 3, 8)}, "random codes"),
        Case({"codes": _every_pair()}, "every pair of codes"),
        Case({"codes": _draw(generator, 5, 1, 4)}, "one token"),
    ]


def _unpack_cases(generator):
    return [Case({"packed": pack_int4(case["codes"])}, case.label) for case in _pack_cases(generator)]


def _nibbles(codes):
    return codes.to(torch.int16) & 15


def _pack(low, high):
    return (low | (high << 4)).to(torch.uint8)


def _halves(codes):
    low, high = _nibbles(codes).chunk(2, dim=-1)
    return _pack(low, high)


def _sign_runs_over(codes):
    wide = codes.to(torch.int16)
    return ((wide[..., ::2] | (wide[..., 1::2] << 4)) & 255).to(torch.uint8)


def _shift_by_three(codes):
    nibbles = _nibbles(codes)
    return (nibbles[..., ::2] | (nibbles[..., 1::2] << 3)).to(torch.uint8)


def _magnitude(codes):
    size = codes.to(torch.int16).abs() & 7 | (codes < 0).to(torch.int16) << 3
    return _pack(size[..., ::2], size[..., 1::2])


PACK_INT4 = Exercise(
    name="pack_int4",
    lesson=8,
    title="Two codes in a byte",
    minutes=15,
    difficulty=2,
    why="No tensor has numbers of four bits. Whoever keeps one 4-bit code in each byte has saved nothing "
    "against int8, whatever the cache is called.",
    signature="pack_int4(codes)",
    reference=pack_int4,
    cases=_pack_cases,
    axes=PACKED_AXES,
    misconceptions=(
        Misconception(
            "one code a byte",
            lambda codes: _nibbles(codes).to(torch.uint8),
            "The numbers are right and the bytes are as many as before (sgl-project/sglang#22777 is about "
            "a cache that was quantised in name only).",
        ),
        Misconception(
            "the first code is in the high half",
            lambda codes: _pack(_nibbles(codes)[..., 1::2], _nibbles(codes)[..., ::2]),
            "The first of the two belongs into the low four bits. Another order unpacks each pair the "
            "wrong way round.",
        ),
        Misconception(
            "the first half of the channels is packed with the second half",
            _halves,
            "That is a way to do it, but here neighbours share a byte: channels 0 and 1, 2 and 3.",
        ),
        Misconception(
            "the sign of the first code runs over the second",
            _sign_runs_over,
            "A negative number has ones in all its upper bits. Joined as it is, it overwrites its "
            "neighbour; only its low four bits may go in.",
        ),
        Misconception(
            "8 was added before packing",
            lambda codes: _pack(*(codes.to(torch.int16)[..., at::2] + 8 for at in (0, 1))),
            "That, too, makes codes without a sign, and a library may do it. Here -1 is the bits 1111, as "
            "in int8, cut to four.",
        ),
        Misconception(
            "the second code is moved by three bits",
            _shift_by_three,
            "A code of four bits takes places 0 to 3; the next one begins at place 4.",
        ),
        Misconception(
            "a bit for the sign, and three for the size",
            _magnitude,
            "int8 does not keep numbers so: -1 is all ones. Sign and size would have two zeros and no -8.",
        ),
    ),
    hints=(
        "`x & 15` keeps the low four bits of a number, whatever its sign.",
        "Every second channel: [..., ::2] and [..., 1::2].",
        "`<< 4` moves bits up by four places, `|` puts two numbers together that share no bits. int8 has "
        "no room above its own 8 bits: change the dtype first.",
    ),
)


def _no_sign(packed):
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).to(torch.int8)


def _signed(nibbles):
    nibbles = nibbles.to(torch.int8)
    return torch.where(nibbles > 7, nibbles - 16, nibbles)


def _high_first(packed):
    return _signed(torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2))


def _not_interleaved(packed):
    return _signed(torch.cat((packed & 15, packed >> 4), dim=-1))


def _minus_eight(packed):
    return _no_sign(packed) - 8


def _off_by_one_sign(packed):
    nibbles = _no_sign(packed)
    return torch.where(nibbles > 8, nibbles - 16, nibbles)


def _sign_of_the_high_half_only(packed):
    low, high = (packed & 15).to(torch.int8), packed.view(torch.int8) >> 4
    return torch.stack((low, high), dim=-1).flatten(-2)


UNPACK_INT4 = Exercise(
    name="unpack_int4",
    lesson=8,
    title="And out again, with the sign",
    minutes=10,
    difficulty=2,
    why="Four bits know nothing of a sign: 1111 is 15 or -1. Who forgets it turns every negative key into "
    "a large positive one.",
    signature="unpack_int4(packed)",
    reference=unpack_int4,
    cases=_unpack_cases,
    axes=UNPACKED_AXES,
    misconceptions=(
        Misconception(
            "the sign is lost",
            _no_sign,
            "The bits 1111 are -1 here and not 15. Codes from 8 on stand for the negative numbers.",
        ),
        Misconception(
            "the sign of the second code alone",
            _sign_of_the_high_half_only,
            "Shifting a signed byte to the right brings its sign along. The low four bits have a sign, "
            "too, and no shift did it for them.",
        ),
        Misconception(
            "8 was subtracted",
            _minus_eight,
            "That fits codes to which 8 had been added. These are cut from int8: 0 to 7 are themselves.",
        ),
        Misconception(
            "8 counts as positive",
            _off_by_one_sign,
            "Four bits with a sign reach from -8 to 7. The bits 1000 are -8.",
        ),
        Misconception(
            "the high half came first",
            _high_first,
            "The first of two codes lies in the low four bits.",
        ),
        Misconception(
            "the two halves stand one behind the other",
            _not_interleaved,
            "The codes of one byte are neighbours: channels 0 and 1, then 2 and 3.",
        ),
    ),
    hints=(
        "First get the two numbers from 0 to 15 of each byte, then think about the sign.",
        "torch.stack(..., dim=-1).flatten(-2) puts two tensors together like the teeth of a zip.",
        "What is 15 to become, and 8, and 7? Which of them change, and by how much?",
    ),
)
