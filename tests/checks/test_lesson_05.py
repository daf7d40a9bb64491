"""The napkin's checks: any unit a person would write, and what is told about one that is not."""

import pytest

from kvlearn.checks import REGISTRY, judge
from kvlearn.checks.engine import WrongAnswer
from kvlearn.checks.lesson_05.amounts import interval

SIZES = ["bytes_per_token", "cache_size", "hybrid_bytes", "latent_bytes", "quantised_bytes"]
WRITINGS = {
    "a float": float,
    "GiB": lambda n: f"{n / 2**30:.9g} GiB",
    "GB without a blank": lambda n: f"{n / 10**9:.9g}GB",
    "MiB with commas": lambda n: f"{n / 2**20:,.4f} MiB",
    "a pair": lambda n: (n / 1000, "kB"),
    "bytes in words": lambda n: f"{n:,} bytes",
    "small letters": lambda n: f"{n / 2**10:.3f} kib",
    "a power of ten": lambda n: f"{n / 10**6:.6e} MB",
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
        if isinstance(misconception.answer(*exercise.cases(_generator())[0].inputs.values()), str):
            continue  # wrong in its unit, and so in this one only
        for write in (lambda n: f"{n / 2**20:.5f} MiB", lambda n: f"{n / 10**6:,.5f} MB"):
            result = judge(exercise, lambda *sizes, w=write, m=misconception: w(m.answer(*sizes)), 3)
            assert result.misconception == misconception.name, result.message


def _generator():
    import torch

    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("name", [e for e in REGISTRY if REGISTRY[e].lesson == 5])
def test_another_seed_is_another_sheet(name):
    """The same numbers every time: an answer that was read off once would pass."""
    import torch

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
    exercise = REGISTRY["cache_size"]
    result = judge(exercise, lambda *sizes: f"{exercise.reference(*sizes) / 10**9:.3f} GiB")
    assert (
        "GB and GiB were mixed up" in result.message or "Seven percent is the step from GB" in result.message
    )
    result = judge(exercise, lambda *sizes: round(exercise.reference(*sizes) / 2**30) + 1)
    assert "A number without a unit counts as bytes." in result.message
