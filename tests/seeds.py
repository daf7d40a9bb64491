"""The seeds of a test: one in `dev.py test`, all of them in `dev.py test --all`."""

import pytest


def seeds(count):
    """Parameters 0 to count - 1; all but the first are marked as thorough."""
    return [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, count))]


def at_seeds(count):
    """Run a test that takes a `seed` at each of them."""
    return pytest.mark.parametrize("seed", seeds(count))
