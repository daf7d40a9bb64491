"""The exercises of lesson 01: attention weights, attention, and several heads of it.

Nothing is masked here; lesson 02 does that.
"""

from kvlearn.checks.lesson_01.attention import SCALED_DOT_PRODUCT_ATTENTION
from kvlearn.checks.lesson_01.heads import MULTI_HEAD_ATTENTION
from kvlearn.checks.lesson_01.weights import ATTENTION_WEIGHTS

EXERCISES = (ATTENTION_WEIGHTS, SCALED_DOT_PRODUCT_ATTENTION, MULTI_HEAD_ATTENTION)
