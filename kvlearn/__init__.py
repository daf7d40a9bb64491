"""Build the KV cache: from a dot product to a cached decoder that runs a real language model."""

from kvlearn.attention import attention, attention_weights, causal_mask, position_mask
from kvlearn.cache import (
    GrowingCache,
    KVCache,
    LatentCache,
    QuantizedCache,
    SlidingWindowCache,
    StaticCache,
)
from kvlearn.checks import CheckFailed, Result, check, check_cache, hint
from kvlearn.decoder import Decoder, DecoderConfig
from kvlearn.generation import Generation, generate
from kvlearn.quantization import Quantized, QuantSpec, quantize
from kvlearn.rope import apply_rope
from kvlearn.weights import load, load_or_tiny

__all__ = [
    "CheckFailed",
    "Decoder",
    "DecoderConfig",
    "Generation",
    "GrowingCache",
    "KVCache",
    "LatentCache",
    "QuantSpec",
    "Quantized",
    "QuantizedCache",
    "Result",
    "SlidingWindowCache",
    "StaticCache",
    "apply_rope",
    "attention",
    "attention_weights",
    "causal_mask",
    "check",
    "check_cache",
    "generate",
    "hint",
    "load",
    "load_or_tiny",
    "position_mask",
    "quantize",
]
__version__ = "0.1.0"
