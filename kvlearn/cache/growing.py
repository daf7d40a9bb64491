"""The cache that grows: new keys and values are concatenated to the old ones.

The shortest right cache, and what Hugging Face transformers' `DynamicCache` does. Each step copies the whole
history once, and while it does the old and the new copy are alive together (huggingface/transformers#30536).
"""

import torch

from kvlearn.cache.base import KVCache


class GrowingCache(KVCache):
    """Keys and values that grow by concatenation: `allocated_bytes` equals `used_bytes`.

    Args:
        config: a `DecoderConfig`.
        batch_size: B.
        dtype: of what is stored; torch's default when left out.
        device: where it lives; the CPU when left out.
    """

    def _start(self, batch_size):
        (key_heads, key_dim), (value_heads, value_dim) = self.key_shape, self.value_shape
        place = {"dtype": self.dtype, "device": self.device}
        layers = range(self.num_layers)
        self._keys = [torch.empty(batch_size, key_heads, 0, key_dim, **place) for _ in layers]
        self._values = [torch.empty(batch_size, value_heads, 0, value_dim, **place) for _ in layers]

    def _append(self, layer, k, v):
        self._keys[layer] = torch.cat((self._keys[layer], k), dim=2)
        self._values[layer] = torch.cat((self._values[layer], v), dim=2)
        return self._keys[layer], self._values[layer]

    def _truncate(self, layer, length):
        # A slice alone would keep the whole storage alive.
        self._keys[layer] = self._keys[layer][:, :, :length].clone()
        self._values[layer] = self._values[layer][:, :, :length].clone()

    def _tensors(self):
        return self._keys + self._values
