"""The exercises of lesson 07: the window's mask, a prompt through a window, the ring, and a cache on it."""

from kvlearn.checks.lesson_07.cache import SLIDING_WINDOW_CACHE
from kvlearn.checks.lesson_07.mask import WINDOW_MASK
from kvlearn.checks.lesson_07.prefill import WINDOWED_PREFILL
from kvlearn.checks.lesson_07.ring import RING_POSITIONS, RING_WRITE
from kvlearn.checks.lesson_07.rollback import MAY_ROLL_BACK

EXERCISES = (
    WINDOW_MASK,
    WINDOWED_PREFILL,
    RING_POSITIONS,
    RING_WRITE,
    MAY_ROLL_BACK,
    SLIDING_WINDOW_CACHE,
)
