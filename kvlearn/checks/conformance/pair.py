"""A cache under test with a ledger beside it: every call goes to both, and they must agree."""

import inspect
from dataclasses import replace

import torch

from kvlearn.checks.conformance.compare import compare
from kvlearn.checks.conformance.ledger import Broken, Ledger
from kvlearn.checks.conformance.rounding import Rounding
from kvlearn.decoder import DecoderConfig

# Every size is another number, so that no axis can pass for another.
CONFIG = DecoderConfig(
    vocab_size=11,
    hidden_size=24,
    num_layers=4,
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=13,
    max_position=40,
)
LAYERS = range(CONFIG.num_layers)
ROWS = 3
THREE = [[0, 1, 2]] * ROWS  # positions of a first chunk
UNEVEN = [[-1, -1, 0, 1], [0, 1, 2, 3], [-1, 0, 1, 2]]  # prompts of 2, 4 and 3 tokens, padded on the left
MEMBERS = (
    "update key_positions length next_position truncate reorder reset used_bytes allocated_bytes "
    "key_shape value_shape"
).split()


class Pair:
    """A cache and its ledger.

    Args:
        make_cache: called as make_cache(config, batch_size=..., **options).
        generator: the source of the keys and values.
    """

    def __init__(self, make_cache, generator, batch_size=ROWS, config=CONFIG, **options):
        self.make_cache, self.generator = make_cache, generator
        self.layers = range(config.num_layers)
        self.cache = cache = make_cache(config, batch_size=batch_size, **options)
        missing = [name for name in MEMBERS if not hasattr(cache, name)]
        if missing:
            raise Broken(f"It has no {' and no '.join(missing)}.")
        self.window, self.exact = getattr(cache, "window", None), getattr(cache, "exact", True)
        self.rounding = None if self.exact else Rounding(cache)
        # The longest text that both the config and the cache have room for.
        self.room = min(config.max_position, getattr(cache, "max_length", None) or config.max_position)
        # A partial or a function may have chosen the dtype; a class has torch's default.
        chosen = None if isinstance(make_cache, type) else getattr(cache, "dtype", None)
        self.dtype = options.get("dtype") or chosen or torch.get_default_dtype()
        self.device = getattr(cache, "device", torch.device("cpu"))
        self.constructed_batch = batch_size
        self._empty_ledger()

    def _empty_ledger(self) -> None:
        shapes = self.cache.key_shape, self.cache.value_shape
        self.ledger = Ledger(len(self.layers), self.constructed_batch, *shapes, self.dtype, self.device)

    def takes(self, **options) -> bool:
        """Can make_cache be given these, too?"""
        try:
            inspect.signature(self.make_cache).bind(CONFIG, batch_size=ROWS, **options)
        except TypeError:
            return False
        return True

    # Steps ---------------------------------------------------------------------------------------

    def draw(self, length: int) -> list[torch.Tensor]:
        """The keys and the values of new tokens, (layers, B, heads, L, head_dim) each."""
        drawn = []
        for heads, dim in (self.cache.key_shape, self.cache.value_shape):
            size = len(self.layers), self.ledger.batch_size, heads, length, dim
            numbers = torch.randn(size, generator=self.generator, device=self.generator.device)
            drawn.append(numbers.to(self.device, self.dtype))
        return drawn

    def step(self, positions, after_update=None, numbers=None) -> None:
        """Give every layer new tokens, and compare what comes back from each.

        Args:
            positions: one list a row; or a number of tokens, and the cache finds the positions itself.
            after_update: called as after_update(layer, k, v, positions), with the tensors that were given,
                when a layer has been compared.
            numbers: the keys and the values, as `draw` gives them; drawn when left out.
        """
        left_out = isinstance(positions, int)
        if left_out:
            positions = [list(range(start, start + positions)) for start in self.ledger.next_position]
        positions = torch.tensor(positions, dtype=torch.long, device=self.device)
        keys, values = numbers or self.draw(positions.shape[1])
        before = self.ledger.length
        self.ledger.append(positions, keys, values)
        for layer in self.layers:
            # As a decoder gives them: heads were split from the channels of a token, so v is not contiguous.
            k, v = keys[layer].clone(), _split_from_channels(values[layer])
            given = positions.clone()
            try:
                result = self.cache.update(layer, k, v, *([] if left_out else [given]))
            except Exception:
                self.ledger.truncate(before)
                raise
            seen = self.cache.key_positions(layer)
            compare(self.ledger, layer, result, seen, k.shape[2], self.rounding, self.window)
            if after_update is not None:
                after_update(layer, k, v, given)
        self.ledger.end_step(self.window, self.rounding.residual if self.rounding else 0)

    def begin_step(self, positions, layers=None) -> None:
        """New tokens for every layer but the last, or for these alone: a step that is never finished."""
        given = [] if isinstance(positions, int) else [torch.tensor(positions, device=self.device)]
        keys, values = self.draw(given[0].shape[1] if given else positions)
        for layer in self.layers[:-1] if layers is None else layers:
            self.cache.update(layer, keys[layer], values[layer], *given)

    # The other calls -------------------------------------------------------------------------------

    def truncate(self, length) -> None:
        """Roll back. A window may refuse where the next query needs what it has dropped, and is unharmed."""
        may = self.window is not None and self.ledger.needs_what_is_dropped(length, self.window)
        before = self._state() if may else None
        try:
            self.cache.truncate(length)
        except ValueError as error:
            if self.exact and self.window is None:
                raise
            if not may:
                kind = "A lossy cache" if self.window is None else f"A window of {self.window}"
                raise Broken(
                    f"truncate({length}) of {self.ledger.length} slots is refused: {error}\n{kind} still has "
                    "all that the next query needs, so that it should go back."
                ) from None
            self._expect_state(f"truncate({length})", before)
        else:
            self.ledger.truncate(length)

    def reorder(self, index: list[int]) -> None:
        self.cache.reorder(index)
        self.ledger.reorder(index)

    def reset(self) -> None:
        self.cache.reset()
        self._empty_ledger()

    # What must hold --------------------------------------------------------------------------------

    def expect(self, what: str, got, want) -> None:
        if got != want:
            raise Broken(f"{what} is {got} and should be {want}.")

    def expect_lengths(self, when: str) -> None:
        self.expect(f"{when} length", self.cache.length, self.ledger.length)
        self.expect(f"{when} next_position", self.next_position(), self.ledger.next_position)

    def next_position(self) -> list[int]:
        given = self.cache.next_position
        if not isinstance(given, torch.Tensor) or given.is_floating_point() or given.ndim != 1:
            raise Broken(f"next_position is a tensor of whole numbers, one a row; this one is {given!r}.")
        return given.tolist()

    def expect_refusal(self, what: str, call) -> None:
        """An error, and afterwards the cache is as it was and goes on."""
        before = self._state()
        try:
            call()
        except Exception:
            self._expect_state(what, before)
        else:
            raise Broken(f"It should be refused with a clear error, and was accepted: {what}.")
        self.expect_next_step(f"After the refusal of {what}")

    def expect_next_step(self, when: str) -> None:
        try:
            self.step(1)
        except Broken as broken:
            raise Broken(f"{when}, the next step is wrong. {broken}") from None
        except Exception as error:
            raise Broken(f"{when}, the next step fails: {type(error).__name__}: {error}") from error

    def _expect_state(self, what: str, before: dict) -> None:
        after = self._state()
        for name in before:
            self.expect(f"After the refusal of {what}, {name}", after[name], before[name])

    def _state(self) -> dict:
        return {
            "length": self.cache.length,
            "next_position": self.next_position(),
            "used_bytes": self.cache.used_bytes,
            "allocated_bytes": self.cache.allocated_bytes,
            "key_positions": [self.cache.key_positions(layer).tolist() for layer in self.layers],
        }


def long_pair(new, **options) -> Pair:
    """A pair with room for a text that is long for its cache: one of which a lossy cache rounds a good part.

    Two layers do, for a text that is fed token by token.
    """
    rounding = new().rounding
    if rounding is None:
        return new(**options)
    return new(config=replace(CONFIG, num_layers=2, max_position=rounding.long_enough), **options)


def _split_from_channels(x: torch.Tensor) -> torch.Tensor:
    """A copy of x (B, heads, L, head_dim) that lies in memory as (B, L, heads, head_dim)."""
    return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
