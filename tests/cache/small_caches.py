"""A config, a step and a cache that stores nothing, for the tests of what every cache shares."""

import torch

from kvlearn.cache import KVCache
from kvlearn.decoder import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=5,
    hidden_size=9,
    num_layers=3,
    num_heads=8,
    num_kv_heads=4,
    head_dim=6,
    intermediate_size=7,
    max_position=50,
)


class Notes(KVCache):
    """Keeps nothing but a note of what the base class asked for."""

    def __init__(self, *args, **options):
        self.calls = []
        super().__init__(*args, **options)

    def _start(self, batch_size):
        self.calls.append(("start", batch_size))

    def _append(self, layer, k, v):
        self.calls.append(("append", layer, k.shape[2]))
        return k, v

    def _truncate(self, layer, length):
        self.calls.append(("truncate", layer, length))

    def _tensors(self):
        return []


def pair(length, batch=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length)
    k, v = torch.randn(2, batch, 4, length, 6, generator=generator, device="cpu")
    return k.to(dtype), v.to(dtype)


def write(cache, length, positions=None, layers=range(3)):
    """One step; what the last of the layers returned."""
    given = None if positions is None else torch.as_tensor(positions)
    for layer in layers:
        result = cache.update(layer, *pair(length, cache.batch_size), given)
    return result
