"""The conformance suite: does a cache keep the contract that every cache keeps?

    check_cache(MyCache)                                     a class, or anything that makes a cache
    check_cache(partial(StaticCache, max_length=64))

Each rule of the contract is one function in `rules.py`, `lossy.py`, `memory.py` or `refusals.py`, and its
docstring is the sentence that a broken cache is shown. A rule moves a `Pair` (`pair.py`): a cache, and
beside it a `Ledger` (`ledger.py`), which is told the same and says what should come back (`compare.py`; how
far off a lossy cache may be is in `rounding.py`). Memory that nobody has written holds NaN while the rules
run, so that it cannot pass for zeros.

Only the contract's own names are used (`kvlearn.cache.base`), so a cache may be written from scratch. It
needs room for 20 slots and positions up to 39. It may have a `window`, or keep keys and values of other
shapes than the config says (`key_shape`, `value_shape`). It may be lossy (`exact`); then a part of the first
67 tokens has to be codes. Where it names the newest tokens that it keeps exact (`residual`) the text is
longer by as many, and where it says how it quantises (`keys` and `values`, each a `QuantSpec` or None) it is
held to that.
"""

import inspect
from functools import partial

import torch
from torch.overrides import TorchFunctionMode

from kvlearn.checks import explain
from kvlearn.checks.conformance.ledger import Broken
from kvlearn.checks.conformance.pair import CONFIG, ROWS, Pair
from kvlearn.checks.conformance.rules import RULES
from kvlearn.checks.engine import CheckFailed, Result
from kvlearn.checks.isolate import TookTooLong, limited, modes_left, undisturbed

__all__ = ["RULES", "UnwrittenIsNaN", "check_cache"]
MAX_SECONDS = 300  # for all rules; a right cache takes a few
UNWRITTEN = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


def check_cache(make_cache, seed: int = 0) -> Result:
    """Hold a kind of cache against every rule of the contract; prints one line when all hold.

    Args:
        make_cache: called as make_cache(config, batch_size=B): a cache's class, a `functools.partial` of
            it, or a function of one's own.
        seed: of the numbers that are stored.

    Returns:
        A `Result`, passed.

    Raises:
        CheckFailed: a rule does not hold. The message gives the rule and what was seen.
    """
    name = _name(make_cache)
    _check_maker(make_cache, name)
    with undisturbed(seed), limited(MAX_SECONDS), modes_left(), UnwrittenIsNaN():
        new = partial(Pair, make_cache, torch.Generator().manual_seed(seed))
        for rule in RULES:
            sentence = " ".join(rule.__doc__.split())
            try:
                rule(new)
            except Broken as broken:
                _fail(f"{name} breaks a rule of the cache contract. {sentence}\n{broken}")
            except KeyboardInterrupt:
                raise
            except TookTooLong as error:
                late = explain.explain_too_long(error, MAX_SECONDS)
                _fail(f"{name} does not end where a rule is tried. {sentence}\n{late}")
            except BaseException as error:
                if explain.is_unwritten(error):
                    _fail(f"{name} is not written yet: it raises NotImplementedError.")
                _fail(f"{name} fails where a rule is tried. {sentence}\n{explain.explain_error(error)}")
    result = Result(True, None, f"{name}: all {len(RULES)} rules of the cache contract hold.")
    print(result.message)
    return result


class UnwrittenIsNaN(TorchFunctionMode):
    """While this is entered, what `torch.empty` and its relatives return holds NaN, as real memory may.

    Integers hold their largest number. Zeros that were asked for stay zeros: somebody has written those.
    (torch's deterministic mode fills too, and takes seconds to import what it needs.)
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", None) in UNWRITTEN:
            if result.is_floating_point():
                result.fill_(float("nan"))
            elif result.dtype != torch.bool:
                result.fill_(torch.iinfo(result.dtype).max)
        return result


def _check_maker(make_cache, name: str) -> None:
    if not callable(make_cache):
        _fail(
            "check_cache makes its own caches, so it takes the class: check_cache(MyCache), or "
            f"check_cache(functools.partial(MyCache, max_length=64)). This is {explain.kind_of(make_cache)}."
        )
    try:
        signature = inspect.signature(make_cache)
    except Exception:  # a builtin, a __signature__ that raises, or a partial with arguments that do not fit
        _fail(f"check_cache calls {name}(config, batch_size={ROWS}), which it does not take.")
    try:
        signature.bind(CONFIG, batch_size=ROWS)
    except TypeError:
        _fail(f"check_cache calls {name}(config, batch_size={ROWS}), and its parameters are {signature}.")


def _name(make_cache) -> str:
    inner = make_cache.func if isinstance(make_cache, partial) else make_cache
    return getattr(inner, "__name__", type(inner).__name__)


def _fail(text: str) -> None:
    raise CheckFailed(Result(False, None, text))
