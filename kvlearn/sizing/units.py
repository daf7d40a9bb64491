"""Numbers as people write them: "128k" tokens, "40GiB", "80 GB"; and sizes printed so that nobody has to ask.

GiB is 2^30 bytes and GB is 10^9, seven percent apart; a size without its unit is refused. For counts of
tokens k is 1,024, as in the names of models: a 128k model has 131,072 positions.
"""

import math
import re
from fractions import Fraction

from kvlearn.values import is_number, whole

BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BYTES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "BYTE": 1, "BYTES": 1}
TOKENS = {"": 1, "K": 2**10, "M": 2**20}
COUNTS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = re.compile(
    r"\s*([0-9][0-9,_]{,40}\.?[0-9]{,40}(?:[eE][+-]?[0-9]{1,2})?|\.[0-9]{1,40})\s*([A-Za-z]*)\s*"
)

THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9_]*|[0-9]+(?:[eE][+-]?[0-9]+)?")


def read_bytes(size: int | str, name: str = "memory") -> int:
    """Bytes, from a number of bytes or a text with its unit: "40GiB", "80 GB", "512 MiB", "85899345920 B".

    Raises:
        ValueError: no unit, an unknown one, nothing at all, or a size below one byte.
    """
    if not isinstance(size, str):
        return whole(size, name)
    number, unit = _split(size, name, '"40GiB" or "80 GB"')
    if unit.upper() not in BYTES:
        raise ValueError(
            f"{name}={size!r} needs its unit: GiB is 2^30 bytes, GB is 10^9, and MiB, MB, TiB, TB and B are "
            f"read too. Write {size.strip().rstrip('gGmMkKtT').strip()}GiB if binary is meant."
        )
    found = math.floor(number * BYTES[unit.upper()])
    return whole(found, f"{name}={size!r} in bytes")


def read_tokens(count: int | str, name: str = "context") -> int:
    """A number of tokens, from an int or a text: "128k" is 131,072, "1M" is 1,048,576, "8,192" is itself."""
    return _count(count, name, TOKENS, '"128k" or "8192"')


def read_count(count: int | str, name: str = "parameters") -> int:
    """A number of things, decimal: "70.6B" is 70,600,000,000."""
    return _count(count, name, COUNTS, '"8B" or "135M"')


def _count(count, name: str, units: dict, example: str) -> int:
    if not isinstance(count, str):
        return whole(count, name)
    number, unit = _split(count, name, example)
    if unit.upper() not in units:
        raise ValueError(f"{name}={count!r} is not a number of {name}; write it as {example}.")
    found = number * units[unit.upper()]
    if found.denominator != 1:
        raise ValueError(f"{name}={count!r} is not a whole number: {float(found):g}.")
    return whole(int(found), name)


def _split(text: str, name: str, example: str) -> tuple[Fraction, str]:
    """The number, exactly, and the letters behind it."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{name}={text[:60]!r} is not a size; write it as {example}.")
    if not THOUSANDS.fullmatch(match[1].partition(".")[0]):
        raise ValueError(
            f"{name}={text[:60]!r}: a comma stands between thousands, as in 8,192. For a fraction write a "
            f"point: {text.strip()[:60].replace(',', '.', 1)}."
        )
    return Fraction(match[1].replace(",", "").replace("_", "")), match[2]


def show_bytes(count: int | float, digits: int = 2) -> str:
    """Both units at once: "40.00 GiB (42.95 GB)"; small sizes as plain bytes."""
    if not is_number(count) or abs(count) == math.inf:
        raise ValueError(f"A size in bytes is a finite number; got {count!r:.60}.")
    digits = whole(digits, "digits", at_least=0)
    if count < 2**10:
        return f"{count:,} B"
    power = min(int(math.log2(count) // 10), 4)
    binary, decimal = count / 2 ** (10 * power), count / 10 ** (3 * power)
    return f"{binary:,.{digits}f} {'KMGT'[power - 1]}iB ({decimal:,.{digits}f} {'kMGT'[power - 1]}B)"
