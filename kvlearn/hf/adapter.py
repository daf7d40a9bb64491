"""What stands between transformers, which counts slots, and a kvlearn cache, which knows positions.

transformers builds its mask before each pass, from two numbers that it asks the cache for: how many slots
the pass will see, and the number of the first. Column i of the mask is then slot first + i, whatever a row
holds there. A cache of kvlearn may return its slots in any order, and with a window one more than a query
needs; `key_positions` says which they are, and here each is put where the mask expects it.
"""

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from kvlearn.cache import arguments
from kvlearn.cache.base import KVCache
from kvlearn.values import is_whole, whole

PADDED = (
    "The cache has slots that hold no token (padding, or a row that was cut), and transformers would look at "
    "them. Call prepare(cache, prompt, attention_mask), with 0 in the mask at these slots."
)


class HFCache(transformers.Cache):
    """A kvlearn cache with the methods that transformers calls. Made by `to_hf`."""

    def __init__(self, cache: KVCache, model_windows: tuple[int | None, ...]):
        self.cache, self.model_windows = cache, model_windows
        super().__init__(layers=[_Layer(self, layer) for layer in range(cache.num_layers)])
        self.padding = None  # (B, L) True where a token of the prompt that comes is padding
        self.knows_padding = False  # whether `prepare` was given the attention mask
        self._end_pass()

    def _end_pass(self):
        self._next_layer = 0  # the one that writes next
        self._step = None  # (B, L) positions of the tokens that this pass writes
        self._slots = None  # (B, length + L) the position in each slot, as transformers counts slots
        self._described = self._order = None  # the last key_positions, and how to bring them to the expected

    # A pass of the model -------------------------------------------------------------------------

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Write one layer; (B, Hkv, N, D) keys and values of the slots that `get_mask_sizes` announced."""
        self._check_layer(layer_idx)
        for name, states in (("k", key_states), ("v", value_states)):
            arguments.check_is_tensor(name, states)
        if layer_idx == 0:
            self._begin_pass(rows=key_states.shape[0], length=key_states.shape[2])
        seen = self._slots_seen(key_states.shape[2], layer_idx)
        keys, values = self.cache.update(layer_idx, key_states, value_states, self._step)
        described = self.cache.key_positions(layer_idx)
        if described is not self._described:  # most caches answer with one tensor for all layers
            expected = self._slots[:, -seen:]
            self._described, self._order = described, _order(described, expected)
        if self._order is not None:
            keys, values = (_take(stored, self._order) for stored in (keys, values))
        if layer_idx == self.cache.num_layers - 1:
            self._end_pass()
        else:
            self._next_layer = layer_idx + 1
        return keys, values

    def get_mask_sizes(self, query_length, layer_idx=0):
        """(slots that the pass sees, number of the first of them)."""
        seen = self._slots_seen(query_length, layer_idx)
        return seen, self.cache.length + query_length - seen

    def get_seq_length(self, layer_idx=0):
        return self.cache.length

    def _slots_seen(self, length: int, layer: int) -> int:
        """How many slots up to the newest a pass over `length` tokens sees."""
        stored, window = self.cache.length, windows_of(self.cache)[layer]
        return length + (stored if window is None else min(stored, window - 1))

    def _check_layer(self, layer: int) -> None:
        if not is_whole(layer):
            raise ValueError(f"A layer is a whole number; got {layer!r}.")
        if layer >= self.cache.num_layers:
            raise ValueError(
                f"The cache has {self.cache.num_layers} layers and the model more; make the cache with "
                "cache_config(model)."
            )
        if layer != self._next_layer:
            raise ValueError(
                f"The cache waits for layer {self._next_layer} of {self.cache.num_layers} and the model "
                f"writes layer {layer}. Either the model has fewer layers than the cache: make the cache "
                "with cache_config(model). Or the last pass was broken off: call prepare(cache, prompt) or "
                "reset()."
            )

    def _begin_pass(self, rows: int, length: int) -> None:
        cache = self.cache
        if rows != cache.batch_size:
            raise ValueError(
                f"The model computes {rows} rows (each beam and each returned sequence is one) and the cache "
                f"has {cache.batch_size}; make it with batch_size={rows}."
            )
        for layer, (window, own) in enumerate(zip(windows_of(cache), self.model_windows, strict=True)):
            smaller = window is not None and (own is None or own > window)
            if smaller and self._slots_seen(length, layer) > window:
                raise ValueError(
                    f"In a pass over {length} tokens behind {cache.length} a query would see more than the "
                    f"cache's window of {window}, of which transformers' mask knows nothing. Feed the prompt "
                    "token by token, generate(..., prefill_chunk_size=1); or, if the model's own window is "
                    "no larger, say which model it is: to_hf(cache, model)."
                )
        if not self.knows_padding and bool((cache.positions < 0).any()):
            raise ValueError(PADDED)
        self._step, self.padding = self._positions(rows, length)
        self._slots = torch.cat((cache.positions, self._step), dim=1)

    def _positions(self, rows: int, length: int) -> tuple[Tensor, Tensor | None]:
        """(B, L) positions of the next tokens, -1 at padding; and the padding that is still to come."""
        start, padding = self.cache.length, self.padding
        real = torch.ones(rows, length, dtype=torch.bool, device=self.cache.device)
        if padding is not None:
            known = ~padding[:, start : start + length]
            real[:, : known.shape[1]] = known
            padding = padding if start + length < padding.shape[1] else None
        positions = self.cache.next_position[:, None] + real.cumsum(dim=1) - 1
        return positions.masked_fill(~real, -1), padding

    # Going back, and other rows --------------------------------------------------------------------

    def crop(self, tokens_to_remove):
        """Drop the last -tokens_to_remove slots: 0 or a negative number, as in transformers since 5.20.

        Raises:
            ValueError: a positive number, more slots than there are, or what the cache refuses.
        """
        length = self.cache.length
        if not is_whole(tokens_to_remove) or not -length <= tokens_to_remove <= 0:
            raise ValueError(
                f"crop takes minus the number of slots to drop, and the cache holds {length}; got "
                f"{tokens_to_remove!r}. To keep so many slots: cache.truncate(slots)."
            )
        if tokens_to_remove != 0:
            self.cache.truncate(length + int(tokens_to_remove))
        self._end_pass()  # the cache drops what a broken pass has written when the next one starts

    def reset(self):
        """Be empty, with the rows that the cache was made with."""
        self.cache.reset()
        self.padding, self.knows_padding = None, False
        self._end_pass()

    def reorder_cache(self, beam_idx):
        rows = arguments.rows_to_take(self.cache, beam_idx)
        if self._step is not None:
            raise ValueError(
                f"The last pass has not written all {self.cache.num_layers} layers of the cache. Reordering "
                "would drop it, and the text would be wrong. Does the model have as many layers as the "
                "cache? Make it with cache_config(model)."
            )
        self.cache.reorder(rows)
        if self.padding is not None:
            self.padding = self.padding[rows.to(self.padding.device)]
        self._end_pass()

    def batch_select_indices(self, indices):
        """Keep these rows: their numbers, or a mask of booleans, one for each row."""
        mask = isinstance(indices, Tensor) and indices.dtype == torch.bool
        if mask and indices.shape == (self.batch_size,):
            indices = indices.nonzero().flatten()
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats):
        repeats = whole(repeats, "repeats")
        self.reorder_cache(torch.arange(self.batch_size).repeat_interleave(repeats))

    def activate_past_recording(self):
        if not self.is_croppable:
            raise ValueError(
                "Prompt lookup and assisted decoding take back tokens that were refused, and a "
                f"{type(self.cache).__name__} keeps a trace of them (it is lossy, or has a window); use an "
                "exact cache without a window."
            )

    @property
    def is_croppable(self):
        return self.cache.exact and all(window is None for window in windows_of(self.cache))

    @property
    def batch_size(self):
        return self.cache.batch_size

    def __repr__(self):
        return f"HFCache({self.cache!r})"


class _Layer(CacheLayerMixin):
    """One layer, for the code in transformers that asks a layer. The numbers are the whole cache's."""

    def __init__(self, whole: HFCache, layer: int):
        super().__init__()
        self.whole, self.layer = whole, layer
        self.is_sliding = windows_of(whole.cache)[layer] is not None
        self.is_initialized = True  # the cache has its storages already

    def lazy_initialization(self, key_states, value_states):
        pass

    def update(self, key_states, value_states, *args, **kwargs):
        return self.whole.update(key_states, value_states, self.layer)

    def get_mask_sizes(self, query_length):
        return self.whole.get_mask_sizes(query_length, self.layer)

    def get_seq_length(self):
        return self.whole.get_seq_length()

    def get_max_length(self):
        most = self.whole.cache.max_length
        return -1 if most is None else most

    @property
    def is_croppable(self):
        return self.whole.is_croppable


# Between positions and slots ---------------------------------------------------------------------


def _order(described: Tensor, expected: Tensor) -> Tensor | None:
    """(B, N) where each expected position lies among the described ones (B, S); None = as they stand.

    Where padding (-1) is expected any slot may serve: transformers' mask hides it.
    """
    if described.shape == expected.shape and bool((described == expected).all()):
        return None
    positions, order = described.sort(dim=1)
    places = torch.searchsorted(positions, expected.contiguous()).clamp(max=positions.shape[1] - 1)
    missing = (positions.gather(1, places) != expected) & (expected >= 0)
    if bool(missing.any()):
        raise ValueError(
            f"The model's query needs position {int(expected[missing][0])}, and the cache returned positions "
            f"{described.tolist()}: it has dropped what it should have kept."
        )
    return order.gather(1, places)


def _take(stored: Tensor, order: Tensor) -> Tensor:
    """stored (B, Hkv, S, D) at the slots `order` (B, N) of each row."""
    return stored.gather(2, order[:, None, :, None].expand(-1, stored.shape[1], -1, stored.shape[3]))


def windows_of(cache: KVCache) -> tuple[int | None, ...]:
    """The window of each layer of the cache; None = it keeps everything."""
    return getattr(cache, "windows", None) or (cache.window,) * cache.num_layers
