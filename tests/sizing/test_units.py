"""Sizes and counts as people write them."""

import pytest

from kvlearn.sizing import read_bytes, read_count, read_tokens, show_bytes


@pytest.mark.parametrize(
    "written, found",
    [("40GiB", 40 * 2**30), ("80 GB", 80 * 10**9), ("141GB", 141 * 10**9), ("0.5 TiB", 2**39),
     (" 512 mib ", 2**29), ("1,024 KiB", 2**20), ("1_000 B", 1000), ("1e3 kB", 10**6),
     ("1.5GiB", 3 * 2**29), (12345, 12345), ("85899345920 bytes", 80 * 2**30), (".5 MB", 500_000)],
)  # fmt: skip
def test_bytes(written, found):
    """GB for GiB, and a float on the way to a whole number of bytes."""
    assert read_bytes(written) == found


@pytest.mark.parametrize(
    "written, found",
    [
        ("128k", 131072),
        ("1M", 2**20),
        ("8192", 8192),
        ("8,192", 8192),
        (7, 7),
        ("0.5k", 512),
        ("128K", 131072),
    ],
)
def test_tokens(written, found):
    """128k read as 128,000: the models of that name have 131,072 positions."""
    assert read_tokens(written) == found


def test_counts():
    """A billion of parameters is 10^9."""
    assert read_count("70.6B") == 70_600_000_000 and read_count("135M") == 135_000_000 and read_count(5) == 5


@pytest.mark.parametrize(
    "written",
    ["80", "80G", "80 gigs", "", "GB", "-3 GB", "1.2.3GB", "0 GB", "0.1 B", "nan GB", 0, -1, True, 1.5, None,
     "1e999 GB", "8 GB x", "\u0663 GB", "9" * 5000 + " GB", 10**5000, -(10**5000)],
    ids=lambda written: str(written)[:9] if isinstance(written, str) else type(written).__name__,
)  # fmt: skip
def test_sizes_that_are_none(written):
    """A unit that is guessed, and what is no size at all: "80" may be bytes, GB or GiB."""
    with pytest.raises(ValueError, match="memory"):
        read_bytes(written)


@pytest.mark.parametrize("written", ["128q", "", "k", "0", "-5", "1.0001k", 0, -1, False, None, "128 GB"])
def test_counts_of_tokens_that_are_none(written):
    with pytest.raises(ValueError, match="context"):
        read_tokens(written)


def test_a_unit_that_is_missing_is_asked_for():
    with pytest.raises(ValueError, match="memory='80' needs its unit: GiB is 2.30 bytes, GB is 10.9.* 80GiB"):
        read_bytes("80")


def test_shown_in_both_units():
    """A printed size that does not say which of the two it means."""
    assert show_bytes(40 * 2**30) == "40.00 GiB (42.95 GB)"
    assert show_bytes(327_680) == "320.00 KiB (327.68 kB)" and show_bytes(100) == "100 B"
    assert (
        show_bytes(272 * 2**20, 0) == "272 MiB (285 MB)"
        and show_bytes(2**62) == "4,194,304.00 TiB (4,611,686.02 TB)"
    )


@pytest.mark.parametrize("count", [None, "x", "12", 10**400, float("nan"), float("inf"), [1]])
def test_what_is_no_size_is_not_shown(count):
    """A traceback from the logarithm, or "nan B"."""
    with pytest.raises(ValueError, match="A size in bytes is a finite number; got"):
        show_bytes(count)


@pytest.mark.parametrize("written", ["80,5GB", "1,25 GiB", "8,19", "12,34,567 B", "1,0000 MiB"])
def test_a_comma_is_not_a_decimal_point(written):
    """Would catch 80,5GB read as 805 GB."""
    with pytest.raises(ValueError, match="a comma stands between thousands.* write a point"):
        read_bytes(written)


def test_commas_and_underscores_between_thousands():
    """Would catch a rule about commas that refuses what people write."""
    assert (
        read_bytes("85,899,345,920 B") == read_bytes("85_899_345_920B") == read_bytes("80GiB") == 80 * 2**30
    )
    assert read_bytes("1,024.5 KiB") == 1_049_088 and read_tokens("131,072") == 131_072
