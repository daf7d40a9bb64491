"""The exercises of lesson 04."""

EXERCISES = ()
