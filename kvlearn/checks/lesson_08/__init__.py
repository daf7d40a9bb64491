"""The exercises of lesson 08: codes, scales and zeros, packing, groups, fp8, a quantised cache."""

from kvlearn.checks.lesson_08.asymmetric import QUANTIZE_ASYMMETRIC
from kvlearn.checks.lesson_08.fp8 import TO_FP8
from kvlearn.checks.lesson_08.groups import QUANTIZE_BY_GROUP
from kvlearn.checks.lesson_08.integers import QUANTIZE_INT8
from kvlearn.checks.lesson_08.packed import PACK_INT4, UNPACK_INT4
from kvlearn.checks.lesson_08.recent import TOKENS_IN_CODES
from kvlearn.checks.lesson_08.store import QUANTIZED_CACHE

EXERCISES = (
    QUANTIZE_INT8,
    QUANTIZE_ASYMMETRIC,
    PACK_INT4,
    UNPACK_INT4,
    QUANTIZE_BY_GROUP,
    TO_FP8,
    TOKENS_IN_CODES,
    QUANTIZED_CACHE,
)
