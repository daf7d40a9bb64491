"""Sizes in any unit that a person would write: 1342177280, "1.25 GiB", "~1.34 GB", (1.25, "GiB").

A rounded answer stands for every size that rounds to it, and is compared as an interval: if the right size
lies in it, it is right, unless a known mistake does as well; if only a mistake does, it is that mistake.
"""

import re
from fractions import Fraction

import torch

from kvlearn.checks.compare import as_number, is_tensor
from kvlearn.checks.engine import Misconception, WrongAnswer
from kvlearn.checks.explain import short
from kvlearn.sizing.units import BYTES, THOUSANDS, show_bytes

_NUMBER = r"([0-9][0-9,_]{0,40})(\.[0-9]{0,40})?(?:e([+-]?[0-9]{1,2}))?\s*([a-z]*)"
_WRITTEN = re.compile(
    rf"\s*(?:~|≈|about\s)?\s*{_NUMBER}\s*(?:per token|/\s?token)?\s*(?:\(\s*{_NUMBER}\s*\))?\s*", re.I
)


def observe_size(reference, misconceptions: tuple[Misconception, ...]):
    """An `observe` that gives bytes, whatever the unit of the answer."""

    def observe(answer, case):
        inputs = tuple(case.inputs.values())
        value = answer(*inputs)
        if value is None or value is ...:
            return value
        low, high = interval(value)
        if low == high and low.denominator == 1:
            return int(low)
        right = reference(*inputs)
        mistakes = [sum(interval(m.answer(*inputs))) / 2 for m in misconceptions]
        mistakes += _in_the_other_unit(right)
        inside = [size for size in mistakes if low <= size <= high]
        if low <= right <= high or low < 0:  # below 0: no digit but zeros was written
            _require_digits(value, low, high, right, inside)
            return right
        return round(inside[0] if inside else (low + high) / 2)

    return observe


def _require_digits(value, low, high, right, mistakes):
    """A rounded size must say enough to be told from a usual mistake, and never fewer than three digits."""
    if low + high == 2 * right:
        return  # the size to the byte, however few digits it takes
    said = f"{value[0]} {value[1]}" if isinstance(value, tuple | list) else value
    if 200 * (high - low) > low + high:
        raise WrongAnswer(
            f"{said!r} is too coarse: it stands for every size from {show_bytes(max(round(low), 0))} to "
            f"{show_bytes(round(high))}. Write at least three digits that count, or the bytes."
        )
    if any(size != right for size in mistakes):
        raise WrongAnswer(
            f"{said!r} may be right; but a usual mistake gives a size that rounds to the same. Write more "
            "digits, or the bytes."
        )


def interval(value) -> tuple[Fraction, Fraction]:
    """The smallest and the largest number of bytes that an answer may mean."""
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], str):
        value = f"{value[0]} {value[1]}"
    if isinstance(value, str):
        return _written(value)
    whole = as_number(value, int)
    number = whole if whole is not None else as_number(value, float)
    if number is None or number - number != 0:  # NaN and infinity are no sizes
        kind = f"tensor of shape {tuple(value.shape)}" if is_tensor(value) else type(value).__name__
        raise WrongAnswer(
            f'A size is a number of bytes, or a text such as "1.25 GiB"; yours is a {kind}: {value!r:.60}.'
        )
    if number < 0:
        raise WrongAnswer(f"A size is never negative; yours is {short(number)}.")
    exact = Fraction(number)
    if abs(exact - round(exact)) > abs(exact) / 10**12:  # beyond what rounding a float does
        raise WrongAnswer(
            f'{number} is not a whole number of bytes. If it counts another unit, say so: "{number:.4g} GiB".'
        )
    return Fraction(round(exact)), Fraction(round(exact))


def _written(text: str) -> tuple[Fraction, Fraction]:
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise WrongAnswer(f'{text[:60]!r} is not a size. Write a number and a unit, such as "1.25 GiB".')
    low, high = _read(text, *match.groups()[:4])
    if match[5]:  # the same size in another unit: "1.25 GiB (1.34 GB)"
        other_low, other_high = _read(text, *match.groups()[4:])
        low, high = max(low, other_low), min(high, other_high)
        if low > high:
            raise WrongAnswer(f"{text[:60]!r} says two sizes that are not the same.")
    return low, high


def _read(text: str, whole: str, decimals: str | None, power: str | None, unit: str):
    decimals, unit = decimals or "", unit or "B"
    if unit.upper() not in BYTES:
        raise WrongAnswer(
            f"{text[:60]!r} has the unit {unit!r}. Say which is meant: GiB is 2^30 bytes and GB is 10^9; "
            "MiB, MB, KiB, kB and B are read too."
        )
    if not THOUSANDS.fullmatch(whole):
        raise WrongAnswer(
            f"In {text[:60]!r} a comma stands where no thousands end. For a fraction write a point: "
            f"{whole.replace(',', '.', 1)}."
        )
    number = Fraction((whole + decimals).replace(",", "").replace("_", ""))
    scale = Fraction(10) ** int(power or 0) * BYTES[unit.upper()]
    # Half of the last digit that was written; bytes written out in full are meant to the byte.
    half = Fraction(1, 2) / 10 ** max(len(decimals) - 1, 0) * scale
    half = Fraction(0) if scale == 1 and not decimals.strip(".") else half
    return number * scale - half, number * scale + half


def _in_the_other_unit(size: int) -> dict[Fraction, str]:
    """What is said where the number is that of one unit and the name that of the other."""
    found = {}
    for power, letter in enumerate("kMGT", start=1):
        step = Fraction(2 ** (10 * power), 10 ** (3 * power))
        said = f"The step from {letter}B to {letter.upper()}iB is {round(100 * step - 100)} percent."
        found |= {size * step: said, size / step: said}
    return found


def explain_size(case, got, want) -> str | None:
    """Both sizes, and how many times, or how many bytes, too much or too little."""
    if not want or type(got) is not int:
        return None
    times = got / want
    said = f"{times:,.3g} times as much" if times >= 1 else f"{times:.3g} of it"
    if 0.99 < times < 1.01:
        said = f"{abs(got - want):,} bytes too {'many' if got > want else 'few'}"
    said = f"For {case.label} it is {want:,} bytes, {show_bytes(want)}; yours is {got:,} bytes, {said}."
    units = {round(size): step for size, step in _in_the_other_unit(want).items()}
    if got in units:
        said += f" {units[got]}"
    elif got < 10**4 < want:
        said += " A number without a unit counts as bytes."
    return said


def pick(generator, choices):
    """One of `choices`, by the case's generator."""
    return choices[int(torch.randint(len(choices), (1,), generator=generator))]
