"""The exercises of lesson 03: the parts of a decoder, the greedy loop, and what the loop repeats."""

from kvlearn.checks.lesson_03.counting import COUNT_PROJECTIONS
from kvlearn.checks.lesson_03.decoding import GREEDY_DECODE
from kvlearn.checks.lesson_03.grouped import GROUPED_ATTENTION
from kvlearn.checks.lesson_03.norm import RMS_NORM
from kvlearn.checks.lesson_03.rope import APPLY_ROPE

EXERCISES = (RMS_NORM, APPLY_ROPE, GROUPED_ATTENTION, GREEDY_DECODE, COUNT_PROJECTIONS)
