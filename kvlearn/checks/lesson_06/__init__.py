"""The exercises of lesson 06: grouped heads without copies, pooled heads, latent attention, intensity."""

from kvlearn.checks.lesson_06.absorbed import ABSORBED_SCORES, ABSORBED_VALUES
from kvlearn.checks.lesson_06.groups import ATTEND_IN_GROUPS
from kvlearn.checks.lesson_06.intensity import DECODE_INTENSITY
from kvlearn.checks.lesson_06.latents import EXPAND_LATENTS
from kvlearn.checks.lesson_06.pooled import MEAN_POOL_HEADS

EXERCISES = (
    ATTEND_IN_GROUPS,
    MEAN_POOL_HEADS,
    EXPAND_LATENTS,
    ABSORBED_SCORES,
    ABSORBED_VALUES,
    DECODE_INTENSITY,
)
