"""The exercises of lesson 04: two caches, decoding with one, a prompt in pieces, and your own LLM."""

from kvlearn.checks.lesson_04.decoding import CACHED_DECODE
from kvlearn.checks.lesson_04.growing import GROWING_CACHE
from kvlearn.checks.lesson_04.own import YOUR_OWN_LLM
from kvlearn.checks.lesson_04.prefill import CHUNKED_PREFILL
from kvlearn.checks.lesson_04.static import STATIC_CACHE

EXERCISES = (GROWING_CACHE, STATIC_CACHE, CACHED_DECODE, CHUNKED_PREFILL, YOUR_OWN_LLM)
