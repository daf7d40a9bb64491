"""The preallocated cache: room for `max_length` slots from the start, filled in place.

No step copies the history. The price is memory for tokens that may never come. This is what serving engines
without pages do, and gpt-fast and transformers' `StaticCache`; unlike those it returns the written slots
only, so that what lies in the rest of the storage can never be attended to.
"""

import torch

from kvlearn.cache import arguments
from kvlearn.cache.base import KVCache


class StaticCache(KVCache):
    """Keys and values in storages of a fixed size.

    Args:
        config: a `DecoderConfig`.
        batch_size: B.
        max_length: the most slots a row can hold; config.max_position when left out.
        dtype: of what is stored; torch's default when left out.
        device: where it lives; the CPU when left out.
    """

    def __init__(self, config, batch_size=1, max_length=None, *, dtype=None, device=None):
        arguments.check_sizes(config, batch_size, max_length)
        max_length = config.max_position if max_length is None else max_length
        self._keys = self._values = None
        super().__init__(config, batch_size, max_length=max_length, dtype=dtype, device=device)

    def _start(self, batch_size):
        if self._keys is None or self._keys.shape[1] != batch_size:
            room = (self.num_layers, batch_size)
            (key_heads, key_dim), (value_heads, value_dim) = self.key_shape, self.value_shape
            place = {"dtype": self.dtype, "device": self.device}
            self._keys = torch.empty(*room, key_heads, self.max_length, key_dim, **place)
            self._values = torch.empty(*room, value_heads, self.max_length, value_dim, **place)
        # Storages that fit serve again as they are: what is not written again is never returned.
        self._lengths = [0] * self.num_layers

    def _append(self, layer, k, v):
        start, end = self._lengths[layer], self._lengths[layer] + k.shape[2]
        self._keys[layer, :, :, start:end] = k
        self._values[layer, :, :, start:end] = v
        self._lengths[layer] = end
        return self._stored(layer)

    def _stored(self, layer):
        length = self._lengths[layer]
        return self._keys[layer, :, :, :length], self._values[layer, :, :, :length]

    def _truncate(self, layer, length):
        self._lengths[layer] = length

    def _tensors(self):
        return [tensor for layer in range(self.num_layers) for tensor in self._stored(layer)]
