"""The conformance suite accepts what is right and says what is wrong."""

from functools import cache, partial

import broken_bytes  # noqa: F401  (each adds to BROKEN)
import broken_lossy  # noqa: F401
import broken_moves  # noqa: F401
import broken_refusals  # noqa: F401
import pytest
import torch
from broken_caches import BROKEN
from int8_cache import Int8Cache
from other_caches import (
    ArenaCache,
    DoublingCache,
    ListCache,
    NumpyCache,
    OneRoomCache,
    PagedCache,
    UnequalSidesCache,
)

from kvlearn.cache import GrowingCache, StaticCache
from kvlearn.checks import conformance
from kvlearn.checks.conformance import RULES, UnwrittenIsNaN, check_cache
from kvlearn.checks.conformance.pair import CONFIG
from kvlearn.checks.engine import CheckFailed

RIGHT = {
    "growing": GrowingCache,
    "static": StaticCache,
    "static, 24 slots": partial(StaticCache, max_length=24),
    "static, float16": partial(StaticCache, dtype=torch.float16),
    "doubling, four methods": DoublingCache,
    "keys and values of other shapes": UnequalSidesCache,
    "in pages, with a room for one layer": PagedCache,
    "in memory that was there before": ArenaCache,
    "in arrays of numpy's": NumpyCache,
    "from scratch, newest first": ListCache,
    "from scratch, a window of 3": partial(ListCache, window=3),
    "from scratch, lossy": partial(ListCache, exact=False),
    "from scratch, lossy, a window of 3": partial(ListCache, window=3, exact=False),
    "int8 codes in a room of a fixed size": Int8Cache,
    "one room that all layers pass through": OneRoomCache,
}


def rule_of(words):
    """The rule that a broken cache is registered for, alone; all rules where it breaks none by name."""
    return tuple(rule for rule in RULES if words[0] in " ".join(rule.__doc__.split()))[:1] or RULES


@cache
def complaint(make_cache, rules=RULES) -> str:
    with pytest.raises(CheckFailed) as error, pytest.MonkeyPatch.context() as patch:
        patch.setattr(conformance, "RULES", rules)
        for name in {"_keys", "_values"} & vars(make_cache).keys():
            patch.setattr(make_cache, name, [])  # what a bug on class level leaves is not for the next check
        check_cache(make_cache)
    assert not error.value.result.passed and error.value.result.message == str(error.value)
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("make_cache", RIGHT.values(), ids=RIGHT)
def test_right_caches_pass(make_cache, capsys):
    """A suite that asks for more than the contract would refuse a learner's right cache."""
    result = check_cache(make_cache)
    assert result.passed
    assert capsys.readouterr().out == result.message + "\n"
    assert f"all {len(RULES)} rules" in result.message and "\n" not in result.message


every_broken_cache = pytest.mark.parametrize("kind, words", BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])


# Who changes the suite runs all of it; the inner loop needs to know that right caches pass.
@pytest.mark.slow
@every_broken_cache
def test_broken_caches_are_told_what_is_wrong(kind, words):
    """Each classic bug is rejected by the rule that it breaks, in words that point at it."""
    for word in (kind.__name__, *words):
        assert word in complaint(kind, rule_of(words))


@pytest.mark.thorough
@every_broken_cache
def test_no_rule_before_it_rejects_a_broken_cache(kind, words):
    """A rule that is broken by something else than what it says, and so is the first to reject."""
    for word in (kind.__name__, *words):
        assert word in complaint(kind)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_rejects_something(rule):
    """A rule that no broken cache breaks may be a rule that checks nothing."""
    sentence = " ".join(rule.__doc__.split())
    assert any(sentence in complaint(kind, rule_of(words)) for kind, words in BROKEN)


@pytest.mark.parametrize(
    "given, words",
    [
        (StaticCache(CONFIG), "takes the class: check_cache(MyCache)"),
        (lambda: None, "calls <lambda>(config, batch_size=3), and its parameters are ()"),
        (lambda config, **named: named["room"], "KeyError: 'room'"),
        (lambda config, batch_size: None, "It has no update and no key_positions"),
        (lambda config, batch_size: exit(), "SystemExit"),
        (dict, "calls dict(config, batch_size=3), which it does not take"),
        (partial(GrowingCache, room=3), "calls GrowingCache(config, batch_size=3), which it does not take"),
    ],
)
def test_what_is_no_cache_is_said(given, words):
    """The first mistake is in the call: a cache for its class, or a function without a batch size."""
    assert words in complaint(given)


def test_a_cache_that_never_ends_is_stopped(monkeypatch):
    """A loop in `update` takes the notebook with it."""

    class Endless(GrowingCache):
        def _append(self, layer, k, v):
            while True:
                pass

    monkeypatch.setattr(conformance, "MAX_SECONDS", 0.2)
    text = complaint(Endless)
    assert "Endless does not end where a rule is tried" in text and "in _append, line " in text


def test_a_cache_that_drops_too_much_of_its_window_is_refused():
    """ml-explore/mlx-lm#390's kind of mistake: the window that is kept is not the window that is seen."""

    class Short(ListCache):
        def _settle(self, rows, new):
            self.window -= 2
            kept = super()._settle(rows, new)
            self.window += 2
            return kept

    assert "[0] missing" in complaint(partial(Short, window=4))


def test_a_lossy_cache_must_be_near_and_exact_in_this_step():
    """huggingface/transformers#34189: a lossy cache may round the past, and neither lose it nor round the
    tokens of this step."""

    class Lost(ListCache):
        def _stored(self, k, v, gone):
            return torch.zeros_like(k), torch.zeros_like(v)

    class RoundsAtOnce(ListCache):
        def update(self, layer, k, v, positions=None):
            return super().update(layer, k.bfloat16().float(), v, positions)

    assert "not even near" in complaint(partial(Lost, exact=False))
    assert "is not the one that was given" in complaint(partial(RoundsAtOnce, exact=False))


def test_memory_that_nobody_wrote_is_nan_inside_and_only_inside():
    """Fresh memory often holds zeros, so that a cache that returns it looks right on most days."""
    like = torch.ones(2, 3)
    with UnwrittenIsNaN():
        for made in (
            torch.empty(2, 3),
            torch.empty_like(like),
            like.new_empty(4),
            torch.empty_strided((2, 3), (3, 1)),
        ):
            assert made.isnan().all()
        assert (torch.empty(5, dtype=torch.long) == torch.iinfo(torch.long).max).all()
        assert torch.empty(2, dtype=torch.bool).dtype == torch.bool
        assert torch.equal(torch.zeros(2), torch.tensor([0.0, 0.0]))
    assert not torch.empty(1000).fill_(1.0).isnan().any()


@pytest.mark.slow
def test_the_suite_leaves_torch_as_it_was():
    """A check in a notebook must not reseed the reader's own draws or change the default dtype."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    try:
        check_cache(GrowingCache)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.rand(3), expected)
