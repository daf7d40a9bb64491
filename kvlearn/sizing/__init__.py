"""The napkin: how many bytes a cache takes, what fits, and when it outweighs the weights.

    from kvlearn import sizing
    shape = sizing.model("llama-3.1-70b")                    or ModelShape.from_config("path/to/config.json")
    sizing.cache_bytes(shape, tokens=131072)                 42,949,672,960: 40 GiB
    sizing.max_batch(shape, 131072, "141 GB", "fp8", weights="int4")

formulas.py    bytes of caches and weights, batches, contexts, crossovers
shape.py       what a model's cache depends on
formats.py     the types of a cache: bits, scales, residual windows
config.py      a shape from a Hugging Face config.json
known.py       models and cards by name, with their sources (models.json, gpus.json)
units.py       "128k", "40GiB", "80 GB"
"""

from kvlearn.sizing.config import ConfigError
from kvlearn.sizing.formats import NAMES as CACHE_TYPES
from kvlearn.sizing.formats import CacheType, Side, cache_type, from_specs, weight_bits
from kvlearn.sizing.formulas import (
    bytes_per_token,
    cache_bytes,
    crossover_batch,
    crossover_tokens,
    max_batch,
    max_context,
    step_bytes,
    weight_bytes,
)
from kvlearn.sizing.known import gpu, gpus, model, models
from kvlearn.sizing.shape import ModelShape
from kvlearn.sizing.units import read_bytes, read_count, read_tokens, show_bytes
from kvlearn.values import whole as read_whole

__all__ = [
    "CACHE_TYPES",
    "CacheType",
    "ConfigError",
    "ModelShape",
    "Side",
    "bytes_per_token",
    "cache_bytes",
    "cache_type",
    "crossover_batch",
    "crossover_tokens",
    "from_specs",
    "gpu",
    "gpus",
    "max_batch",
    "max_context",
    "model",
    "models",
    "read_bytes",
    "read_count",
    "read_tokens",
    "read_whole",
    "show_bytes",
    "step_bytes",
    "weight_bits",
    "weight_bytes",
]
