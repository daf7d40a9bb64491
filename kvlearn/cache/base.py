"""The contract of a cache, and the bookkeeping that every cache shares.

A decoder with a causal mask never changes the keys and values of a token once they are computed. A cache
keeps them, so that a step projects the new tokens alone:

    K, V = cache.update(layer, k, v, positions)      once per layer and step

This class keeps the positions, the lengths and the errors. A cache is then four short methods:

    _start(batch_size)               be empty, with room for so many rows
    _append(layer, k, v) -> (K, V)   store copies of k and v behind what the layer holds; return all of it
    _truncate(layer, length)         keep the layer's first `length` slots
    _tensors()                       the tensors that hold the stored slots, for counting bytes

A slot is a place for one token in each row. Padding takes a slot too, and has position -1. A step is one
pass of the decoder over some new tokens: it writes every layer once, and the length moves with the last.

A tensor made inside `torch.inference_mode` can be neither written to nor used with autograd outside it. What
a cache keeps has to outlast the mode, so every method that stores something leaves it first.

Eager only: lengths are Python numbers and the errors look at positions, so a compiled step would be traced
again at every length (meta-pytorch/torchtune#1663).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from kvlearn.cache import arguments


class KVCache(ABC):
    """What every cache does. See the module for the four methods that a kind of cache adds.

    Args:
        config: a `DecoderConfig`, or anything with its num_layers, num_kv_heads, head_dim, max_position.
        batch_size: B, the rows that `reset` returns to.
        max_length: the most slots a row can hold; None = as many as memory holds.
        dtype: of the stored keys and values; torch's default when left out.
        device: where they live; the CPU when left out, whatever torch's default device is.
    """

    exact = True  # False where what comes back is not, to the bit, what was stored
    window = None  # or W: a query sees itself and the W - 1 positions before it

    def __init__(self, config, batch_size=1, *, max_length=None, dtype=None, device=None):
        arguments.check_sizes(config, batch_size, max_length)
        self.num_layers = config.num_layers
        self.key_shape = self.value_shape = (config.num_kv_heads, config.head_dim)
        self.max_position = config.max_position
        self.max_length = max_length
        self.dtype = arguments.floating_dtype(dtype)
        self.device = arguments.real_device(device)
        self._constructed_batch = batch_size
        self._begin(batch_size)

    # What a kind of cache writes -----------------------------------------------------------------

    @abstractmethod
    def _start(self, batch_size: int) -> None:
        """Be empty, for `batch_size` rows: when the cache is made, reset or given other rows."""

    @abstractmethod
    def _append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store copies of k and v, (B, Hkv, L, D); return all that the layer holds, (B, Hkv, S, D)."""

    @abstractmethod
    def _truncate(self, layer: int, length: int) -> None:
        """Keep the first `length` slots of the layer."""

    @abstractmethod
    def _tensors(self) -> list[Tensor]:
        """The tensors that hold the stored slots; a view where a storage has room for more."""

    # What a kind of cache that drops or rounds its slots writes too ---------------------------------

    def _settle(self) -> None:  # noqa: B027  (most caches have nothing to do)
        """The last layer of a step has been written, and `length` has moved: evict, or round, now."""

    def _kept_positions(self, layer: int) -> Tensor:
        """(B, S) positions of what the layer holds without the step under way, as `_append` returns it."""
        return self._positions

    def _reorder(self, index: Tensor) -> None:
        """Row i becomes a copy of row index[i], in every layer."""
        nothing = [
            torch.empty(self.batch_size, heads, 0, dim, dtype=self.dtype, device=self.device)
            for heads, dim in (self.key_shape, self.value_shape)
        ]
        # Appending no tokens returns what a layer holds; index_select makes the copies.
        chosen = [
            [kept.index_select(0, index) for kept in self._append(layer, *nothing)]
            for layer in range(self.num_layers)
        ]
        self._begin(len(index))
        for layer, (k, v) in enumerate(chosen):
            self._append(layer, k, v)

    # A step --------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def update(
        self, layer: int, k: Tensor, v: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Append the new tokens' keys and values to one layer; return what this step attends over.

        Args:
            layer: 0 to num_layers - 1.
            k: (B, Hkv, L, D), turned by RoPE already; copied, never kept. Gradients stop here.
            v: (B, Hkv, L, D).
            positions: (B, L) integers, strictly increasing in a row; -1 = padding. Left out, they go on
                from `next_position`. The same for every layer of a step.

        Returns:
            K and V, (B, Hkv, S, D), the written slots only, the new ones included. Read-only, and valid
            until the next call on the cache. `key_positions(layer)` describes them.

        Raises:
            ValueError: a layer, shape, dtype, device or position that does not fit, or no room left. The
                cache is then as it was.
        """
        arguments.check_layer(layer, self.num_layers)
        arguments.check_keys_values(self, k, v)
        length = k.shape[2]
        if not self._written or layer in self._written:
            step = self._new_positions(positions, length)  # may raise: nothing has been touched yet
            self._drop_step()
            self._step, self._given = step, positions
        elif length != self._step.shape[1] or not self._same_step(positions):
            raise ValueError(
                f"A step writes each layer with the same positions; layer {layer} got {length} tokens at "
                f"{arguments.describe_positions(positions)}, and this step is at "
                f"{arguments.describe_positions(self._step)}."
            )
        # Numbers are kept, not the graph that made them: it would keep every step's activations alive.
        stored = self._append(layer, k.detach(), v.detach())
        self._written.add(layer)
        self._last_positions[layer] = self._with_step(self._kept_positions(layer))
        if len(self._written) == self.num_layers:
            self._positions = self._with_step(self._positions)
            self._settle()
            self._end_step()
        return stored

    def key_positions(self, layer: int) -> Tensor:
        """(B, S) positions of what the last `update` of this layer returned; -1 = nothing there."""
        arguments.check_layer(layer, self.num_layers)
        return self._last_positions[layer]

    @property
    def positions(self) -> Tensor:
        """(B, length) positions of all slots in the order they were written; -1 = padding."""
        return self._positions

    @property
    def length(self) -> int:
        """Slots that every layer has written since `reset`, padding included."""
        return self._positions.shape[1]

    @property
    def next_position(self) -> Tensor:
        """(B,) the position of each row's next token: 1 + the largest stored, 0 if there is none."""
        if self.length == 0:
            return torch.zeros(self.batch_size, dtype=torch.long, device=self.device)
        return self._positions.amax(dim=1) + 1

    @property
    def batch_size(self) -> int:
        """B, the number of rows now."""
        return self._positions.shape[0]

    # Going back, and other rows --------------------------------------------------------------------

    @torch.inference_mode(False)
    def truncate(self, length: int | Sequence[int] | Tensor) -> None:
        """Roll back to a number of slots, or to one number a row. Kept slots are not touched.

        A row whose number is smaller than the largest keeps its place: its slots beyond become
        position -1, and nobody sees them.

        Raises:
            ValueError: more slots than there are, a negative number, or not one number a row.
        """
        positions = self._first_slots(arguments.slots_to_keep(self, length))
        for layer in range(self.num_layers):
            self._truncate(layer, positions.shape[1])  # what an unfinished step has written goes too
        self._describe(positions)

    @torch.inference_mode(False)
    def reorder(self, batch_index: Sequence[int] | Tensor) -> None:
        """Row i becomes a copy of what was row batch_index[i]: beam search, or rows that leave.

        The batch may shrink or grow; the rows are independent afterwards.

        Raises:
            ValueError: an index that is not a row, or none at all.
        """
        index = arguments.rows_to_take(self, batch_index)
        self._drop_step()
        positions = self._positions.index_select(0, index)
        self._reorder(index)
        self._describe(positions)

    def reset(self) -> None:
        """Forget everything; the batch is the constructor's again."""
        self._begin(self._constructed_batch)

    # Bytes -----------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes that the stored slots need, padding included; positions are not counted."""
        return sum(tensor.nbytes for tensor in self._tensors())

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the storages behind them, room for later tokens included; each storage once."""
        storages = [tensor.untyped_storage() for tensor in self._tensors()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_layers} layers, batch {self.batch_size}, "
            f"length {self.length}, {self.used_bytes} bytes used, {self.allocated_bytes} allocated)"
        )

    # The bookkeeping ---------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def _begin(self, batch_size: int) -> None:
        """Be empty, for so many rows. A cache that looks at `length` or `batch_size` finds the new ones."""
        self._positions = torch.empty(batch_size, 0, dtype=torch.long, device=self.device)
        self._start(batch_size)
        self._describe(self._positions)

    def _first_slots(self, slots: Tensor) -> Tensor:
        """(B, largest) positions that a truncate leaves; `slots` is (B,), or () for one number."""
        largest = int(slots.max())
        kept = torch.arange(largest, device=self.device) < slots.reshape(-1, 1)  # (B or 1, largest)
        return self._positions[:, :largest].masked_fill(~kept, -1)

    def _describe(self, positions: Tensor) -> None:
        """These are the slots now, in every layer, and no step is under way."""
        self._positions = positions
        self._last_positions = [self._kept_positions(layer) for layer in range(self.num_layers)]
        self._end_step()

    def _end_step(self) -> None:
        self._step = None  # (B, L) positions of the step under way
        self._given = None  # the tensor that the caller gave for them
        self._written: set[int] = set()  # the layers that it has written
        self._joined = (None, None)  # positions that were asked for with the step, and without it

    def _with_step(self, kept: Tensor) -> Tensor:
        """(B, S + L) positions with the step under way: one tensor for all layers that keep the same."""
        if self._joined[1] is not kept:
            self._joined = torch.cat((kept, self._step), dim=1), kept
        return self._joined[0]

    def _drop_step(self) -> None:
        """Take back the layers that an unfinished step has written."""
        for layer in self._written:
            self._truncate(layer, self.length)
            self._last_positions[layer] = self._kept_positions(layer)
        self._end_step()

    def _same_step(self, positions: Tensor | None) -> bool:
        if positions is self._given:
            return True
        if not isinstance(positions, Tensor) or positions.shape != self._step.shape:
            return False
        return bool((positions.to(self.device) == self._step).all())

    def _new_positions(self, positions: Tensor | None, length: int) -> Tensor:
        """(B, L) positions of a new step, checked, in a tensor of the cache's own."""
        arguments.check_room(self, length)
        following = self.next_position[:, None]  # (B, 1)
        if positions is None:
            positions = following + torch.arange(length, device=self.device)
        else:
            arguments.check_positions(positions, (self.batch_size, length))
            positions = positions.to(self.device, torch.long, copy=True)
            arguments.check_order(positions, following)
        arguments.check_last_position(positions, self.max_position)
        return positions
