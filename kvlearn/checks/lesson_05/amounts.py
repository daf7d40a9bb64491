"""Sizes in any unit that a person would write: 1342177280, "1.25 GiB", "1.34 GB", "1,280 MiB", (1.25, "GiB").

A rounded answer stands for every size that rounds to it. So it is compared as an interval: if the right size
lies in it, it is right; if a known mistake does, it is that mistake.
"""

import re
from fractions import Fraction

import torch

from kvlearn.checks.compare import as_number, is_tensor
from kvlearn.checks.engine import Misconception, WrongAnswer
from kvlearn.sizing.units import BYTES, show_bytes

_WRITTEN = re.compile(
    r"\s*([0-9][0-9,_]{0,40})(\.[0-9]{0,40})?(?:e([+-]?[0-9]{1,2}))?\s*([a-zA-Z]*)\s*", re.I
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
        for known in (reference, *(misconception.answer for misconception in misconceptions)):
            size = sum(interval(known(*inputs))) / 2
            if low <= size <= high:
                return int(size)
        return round((low + high) / 2)

    return observe


def interval(value) -> tuple[Fraction, Fraction]:
    """The smallest and the largest number of bytes that an answer may mean."""
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], str):
        value = f"{value[0]} {value[1]}"
    if isinstance(value, str):
        return _written(value)
    whole = as_number(value, int)
    if whole is not None and whole < 0:
        raise WrongAnswer(f"A size is never negative; yours is {whole}.")
    if whole is not None:
        return Fraction(whole), Fraction(whole)
    number = as_number(value, float)
    if number is None or number - number != 0:  # NaN and infinity are no sizes
        kind = f"tensor of shape {tuple(value.shape)}" if is_tensor(value) else type(value).__name__
        raise WrongAnswer(
            f'A size is a number of bytes, or a text such as "1.25 GiB"; yours is a {kind}: {value!r:.60}.'
        )
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
    whole, decimals, power, unit = match[1], match[2] or "", int(match[3] or 0), match[4].upper() or "B"
    if unit not in BYTES:
        raise WrongAnswer(
            f"{text[:60]!r} has the unit {match[4]!r}. Say which is meant: GiB is 2^30 bytes and GB is 10^9; "
            "MiB, MB, KiB, kB and B are read too."
        )
    number = Fraction((whole + decimals).replace(",", "").replace("_", ""))
    scale = Fraction(10) ** power * BYTES[unit]
    # Half of the last digit that was written; bytes written out in full are meant to the byte.
    half = Fraction(1, 2) / 10 ** max(len(decimals) - 1, 0) * scale
    half = Fraction(0) if scale == 1 and not decimals.strip(".") else half
    return number * scale - half, number * scale + half


def explain_size(case, got, want) -> str | None:
    """Both sizes, and how many times too much or too little."""
    if not want or type(got) is not int:
        return None
    times = got / want
    said = f"{times:,.3g} times as much" if times >= 1 else f"{times:.3g} of it"
    said = f"For {case.label} it is {want:,} bytes, {show_bytes(want)}; yours is {got:,} bytes, {said}."
    if abs(times - 2**30 / 10**9) < 0.006 or abs(times - 10**9 / 2**30) < 0.006:
        said += " Seven percent is the step from GB (10^9) to GiB (2^30)."
    elif got < 10**4 < want:
        said += " A number without a unit counts as bytes."
    return said


def pick(generator, choices):
    """One of `choices`, by the case's generator."""
    return choices[int(torch.randint(len(choices), (1,), generator=generator))]
