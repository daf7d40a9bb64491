"""Lesson 08: mistakes as other people write them, that a check once let pass."""

import pytest
import torch
from course_answers import course_answers

from kvlearn.checks import REGISTRY, judge
from kvlearn.checks.lesson_08.store_mistakes import Right

E4M3 = torch.float8_e4m3fn


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


@pytest.mark.slow
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
                self.sides[layer][side] = (
                    *quantize_int8(numbers[:, :, :border]),
                    numbers[:, :, border:].clone(),
                )
                whole.append(numbers)
            return tuple(whole)

    result = judge(REGISTRY["quantized_cache"], Again)
    assert result.misconception == "the whole history is quantised again at every step"


class Probe(Right):
    """A right quantised cache, from which the next ones differ."""


class KeepsWhatItWasGiven(Probe):
    def _append(self, layer, k, v):
        self.given = [*getattr(self, "given", []), k, v]
        return super()._append(layer, k, v)


class KeepsTheExactHistory(Probe):
    def _append(self, layer, k, v):
        self.history = [*getattr(self, "history", []), k.clone(), v.clone()]
        return super()._append(layer, k, v)


class AlwaysFloat32(Probe):
    def _numbers(self, codes, scale):
        return codes.float() * scale.float()


class DividesByTheScale(Probe):
    def _numbers(self, codes, scale):
        return codes / (1 / scale) + 0 * codes / scale


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer, said",
    [
        (KeepsWhatItWasGiven, "bytes of tensors kept alive, and not named by `_tensors`, at 21 tokens"),
        (KeepsTheExactHistory, "bytes of tensors kept alive, and not named by `_tensors`, at 21 tokens"),
        (AlwaysFloat32, "dtype that comes back from a cache in bfloat16 should be torch.bfloat16"),
        (DividesByTheScale, "holds NaN. Was a token of zeros divided by its scale?"),
    ],
)
def test_what_a_quantised_cache_keeps_and_gives_back(answer, said):
    """Would catch memory that nobody counts, a dtype that is written down, and 0 / 0 for a token of zeros."""
    assert judge(REGISTRY["quantized_cache"], Probe).passed
    assert said in judge(REGISTRY["quantized_cache"], answer).message


def without_a_clamp(x, scale):
    return torch.empty(x.shape, dtype=E4M3).copy_(x / scale)


def without_a_clamp_by_index(x, scale):
    out = torch.empty(x.shape, dtype=E4M3)
    out[:] = x / scale
    return out


@pytest.mark.parametrize("answer", [without_a_clamp, without_a_clamp_by_index])
def test_a_cast_that_is_a_copy_is_a_cast(answer):
    """Would catch a missing clamp that is seen in `to` alone, and a right answer refused for how it casts."""
    for seed in range(5):
        result = judge(REGISTRY["to_fp8"], answer, seed)
        assert result.misconception == "there is no clamp before the cast, or it comes too late"
    assert judge(REGISTRY["to_fp8"], lambda x, scale: answer((x / scale).clamp(-448, 448), 1)).passed


def test_steps_in_half_precision_are_seen():
    """Would catch float16 on the way, which was right on the seeds that had no number near half-way."""
    for seed in range(5):
        message = judge(
            REGISTRY["to_fp8"], lambda x, s: (x.half() / s.half()).clamp(-448, 448).to(E4M3), seed
        )
        assert "not right yet" in message.message
