"""Exercises of lesson 05: the napkin."""

from kvlearn.checks.lesson_05 import configs, fits, kinds, plain, quantised

EXERCISES = (*configs.EXERCISES, *plain.EXERCISES, *kinds.EXERCISES, *quantised.EXERCISES, *fits.EXERCISES)
