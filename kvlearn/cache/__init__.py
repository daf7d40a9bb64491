"""The caches: one contract (`base.py`), one file for each kind."""

from kvlearn.cache.base import KVCache
from kvlearn.cache.growing import GrowingCache
from kvlearn.cache.latent import LatentCache
from kvlearn.cache.quantized import QuantizedCache
from kvlearn.cache.static import StaticCache
from kvlearn.cache.window import SlidingWindowCache

__all__ = ["GrowingCache", "KVCache", "LatentCache", "QuantizedCache", "SlidingWindowCache", "StaticCache"]
