"""Answers to lesson 03 that are nearly right, or right in an unusual way, and what they are told."""

import re

import pytest
import torch
import torch.nn.functional as F
from seeds import at_seeds

from kvlearn.checks import REGISTRY, judge


def told(name, answer, seed=0):
    result = judge(REGISTRY[name], answer, seed)
    assert not result.passed
    return result.message


# RMSNorm --------------------------------------------------------------------------------------------


@at_seeds(20)
def test_the_norm_of_hugging_face_passes(seed):
    """Upcast to float32 whatever x is, norm, back to x's dtype, weight: a case in float64 refused it."""

    def upcast(x, weight, eps):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * wide.to(x.dtype)

    result = judge(REGISTRY["rms_norm"], upcast, seed)
    assert result.passed, result.message


def test_the_norm_left_in_float32_is_said_as_such():
    """The upcast without the way back: every layer after it would run in float32."""

    def left(x, weight, eps):
        return F.rms_norm(x.float(), weight.shape, weight.float(), eps)

    assert "dtype float32; expected float16" in told("rms_norm", left)


def test_a_norm_with_the_wrong_eps_fails():
    """Half precision forgives more than float64 did: eps must be seen by another case."""
    for eps in (None, 0.0, 1e-6, 1e-5):
        assert not judge(REGISTRY["rms_norm"], lambda x, w, e, eps=eps: F.rms_norm(x, w.shape, w, eps)).passed


# Rotary positions -----------------------------------------------------------------------------------


def rope(angles):
    """The answer whose angles are angles(positions (B, 1, L, 1), index of the pair, D, theta, dtype)."""

    def answer(x, positions, theta):
        D = x.shape[-1]
        turn = angles(positions[:, None, :, None], torch.arange(D // 2), D, theta, x.dtype)
        cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    return answer


@pytest.mark.parametrize(
    "angles, misconception",
    [
        (
            lambda p, i, D, theta, dtype: p.to(dtype) * theta ** (-2 * i / D),
            "the positions were rounded to the dtype of x",
        ),
        (
            lambda p, i, D, theta, dtype: p.float() * (theta ** (-2 * i / D)).to(dtype).float(),
            "the speeds were rounded to the dtype of x",
        ),
        (
            lambda p, i, D, theta, dtype: (p * theta ** (-2 * i / D)).to(dtype),
            "the angles were rounded to the dtype of x",
        ),
        (
            lambda p, i, D, theta, dtype: p * (theta ** (-2 * i / D)).to(dtype),
            "the angles were computed in the dtype of x",
        ),
    ],
    ids=["positions", "speeds", "angles", "all"],
)
@at_seeds(20)
def test_whatever_is_rounded_to_bfloat16_has_its_name(angles, misconception, seed):
    """Rounding of one factor alone, of which only one form had a name."""
    assert judge(REGISTRY["apply_rope"], rope(angles), seed).misconception == misconception


def test_a_rounding_without_a_name_is_hinted_at():
    """Exponents in bfloat16 too: right in float32, and told more than an angle."""

    def angles(p, i, D, theta, dtype):
        return p.to(dtype) / theta ** (2 * i.to(dtype) / D)

    message = told("apply_rope", rope(angles))
    assert "Looks like" not in message and "In float32 all is right" in message


def test_a_wrong_angle_in_float32_says_nothing_of_bfloat16():
    """The hint at rounding, shown to a learner whose angles are wrong everywhere."""
    message = told("apply_rope", rope(lambda p, i, D, theta, dtype: 1.5 * p * theta ** (-2 * i / D)))
    assert "should be turned by" in message and "bfloat16" not in message


@at_seeds(20)
def test_no_angle_is_minus_zero_and_the_two_angles_differ(seed):
    """“should be turned by -0.000 radians”, and “by 0.123; yours is by 0.123”."""
    for shift in (0.3, 0.02, 2e-3, -3e-4):
        answer = rope(lambda p, i, D, theta, dtype, shift=shift: p * theta ** (-2 * i / D) + shift)
        message = told("apply_rope", answer, seed)
        assert not re.search(r"-0\.0+\b", message), message
        angles = re.findall(r"by (-?\d\.\d{3})", message)
        assert len(set(angles)) == len(angles)
        assert angles or abs(shift) < 1e-3


# Grouped attention ----------------------------------------------------------------------------------


def grouped(weights):
    """The answer whose weights are weights(scores, mask)."""

    def answer(q, k, v, mask=None):
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        return weights(q @ k.mT / q.shape[-1] ** 0.5, mask) @ v

    return answer


def struck_after(scores, mask):
    return scores.softmax(-1) * (1 if mask is None else mask)


def divided_after(scores, mask):
    kept = struck_after(scores, mask)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-12)


def powers_without_the_maximum(scores, mask):
    powers = scores.exp() * (1 if mask is None else mask)
    return (powers / powers.sum(-1, keepdim=True)).nan_to_num()


@pytest.mark.parametrize(
    "weights, misconception",
    [
        (struck_after, "forbidden weights were struck out after the softmax"),
        (divided_after, "struck out after the softmax, then divided by what was left"),
        (powers_without_the_maximum, None),
    ],
    ids=["struck", "divided", "no maximum"],
)
@at_seeds(20)
def test_a_mask_after_the_softmax_fails(weights, misconception, seed):
    """Divided by what is left it equals the right answer, unless a forbidden score is by far the largest."""
    result = judge(REGISTRY["grouped_attention"], grouped(weights), seed)
    assert not result.passed
    assert misconception in (None, result.misconception)


# The greedy loop ------------------------------------------------------------------------------------


def loop(ends):
    """The greedy loop that stops where ends(token, eos_ids) is true."""

    def answer(model, tokens, max_new_tokens, eos_ids):
        new = []
        while len(new) < max_new_tokens:
            new.append(model(torch.tensor([[*tokens, *new]]))[0, -1].argmax().item())
            if ends(new[-1], eos_ids):
                break
        return new

    return answer


@pytest.mark.parametrize(
    "ends, misconception",
    [
        (lambda token, ids: bool(ids) and token == ids[0], "only the first of eos_ids ends the text"),
        (lambda token, ids: bool(ids) and token == ids[-1], "only the last of eos_ids ends the text"),
        (
            lambda token, ids: token == ids[0],
            "the first of eos_ids was taken for all of them, even where there is none",
        ),
    ],
    ids=["first", "last", "first or an error"],
)
@at_seeds(20)
def test_one_eos_id_taken_for_all_has_its_name(ends, misconception, seed):
    """With one EOS, or with one that is always the last, an answer passes that looks at one id alone."""
    assert judge(REGISTRY["greedy_decode"], loop(ends), seed).misconception == misconception


def test_the_last_eos_id_where_there_is_none_is_shown_as_the_learners_error():
    """`eos_ids[-1]` of no ids: the first thing that is wrong is an IndexError."""
    assert "IndexError" in told("greedy_decode", loop(lambda token, ids: token == ids[-1]))
