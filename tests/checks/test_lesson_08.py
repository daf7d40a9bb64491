"""Lesson 08: mistakes as other people write them, that a check once let pass."""

import pytest
import torch
from course_answers import course_answers

from kvlearn.checks import REGISTRY, judge


def by_loop(x):
    codes = torch.empty(x.shape, dtype=torch.int8)
    scale = x.abs().amax(-1, keepdim=True) / 127
    for b in range(len(x)):
        codes[b] = (x[b] / scale[b]).round()  # the assignment casts
    return codes, scale


def by_reciprocal(x):
    steps = 127 / x.abs().amax(-1, keepdim=True)
    return (x * steps).round_().char(), 1 / steps


def by_copy(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.empty(x.shape, dtype=torch.int8).copy_(torch.round(x / scale)), scale


@pytest.mark.parametrize("answer", [by_loop, by_reciprocal, by_copy])
def test_a_nan_that_becomes_a_code_is_seen(answer):
    """Would catch 0 / 0 that passes, because the cast to int8 makes 0 of NaN on this machine."""
    for seed in range(3):
        result = judge(REGISTRY["quantize_int8"], answer, seed)
        assert not result.passed and result.misconception == "a token of zeros divides by zero"


def test_codes_that_are_mended_after_the_cast_are_right():
    """Would catch a check that forbids a NaN on the way: what counts is what comes back."""

    def mended(x):
        largest = x.abs().amax(-1, keepdim=True)
        codes = (x / (largest / 127)).round().to(torch.int8)
        return torch.where(largest == 0, torch.zeros_like(codes), codes), largest / 127

    assert judge(REGISTRY["quantize_int8"], mended).passed


def test_a_history_that_is_quantised_again_has_its_name():
    """Would catch codes that become exact numbers again when the newest tokens are forgotten."""
    answers = course_answers()
    course = answers["quantized_cache"].run()
    quantize_int8 = answers["quantize_int8"].run()

    class Again(course):
        def _append(self, layer, k, v):
            whole = []
            for side, new in enumerate((k, v)):
                codes, scale, recent = self.sides[layer][side]
                numbers = torch.cat((codes * scale, recent, new), dim=2)
                border = max(0, numbers.shape[2] - self.residual)
                self.sides[layer][side] = (*quantize_int8(numbers[:, :, :border]), numbers[:, :, border:])
                whole.append(numbers)
            return tuple(whole)

    result = judge(REGISTRY["quantized_cache"], Again)
    assert result.misconception == "the whole history is quantised again at every step"
