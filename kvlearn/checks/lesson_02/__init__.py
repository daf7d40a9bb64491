"""The exercises of lesson 02: two masks, attention under a mask, and the proof that K and V are final."""

from kvlearn.checks.lesson_02.attention import MASKED_ATTENTION
from kvlearn.checks.lesson_02.causal import CAUSAL_MASK
from kvlearn.checks.lesson_02.experiment import CHANGED_LAYERS
from kvlearn.checks.lesson_02.positions import POSITION_MASK

EXERCISES = (CAUSAL_MASK, POSITION_MASK, MASKED_ATTENTION, CHANGED_LAYERS)
