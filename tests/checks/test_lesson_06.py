"""Lesson 06's checks: what is said where the numbers are right and the way to them is not."""

import pytest
import torch

from kvlearn.checks import REGISTRY, judge


def _attend(q, k, v):
    """Five axes of queries against keys with an axis of 1 for the group, as `@` invites it."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (torch.softmax(scores, dim=-1) @ v).flatten(1, 2)


def broadcast(q, k, v):
    tall = q.unflatten(1, (k.shape[1], -1))
    return _attend(tall, k[:, :, None], v[:, :, None])


def expanded(q, k, v):
    tall = q.unflatten(1, (k.shape[1], -1))
    k, v = (t[:, :, None].expand(-1, -1, tall.shape[2], -1, -1) for t in (k, v))
    return _attend(tall, k, v)


@pytest.mark.parametrize("answer", [broadcast, expanded])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_broadcast_operand_is_told_to_be_a_copy(answer, seed):
    """A learner who wrote no copy, told "copied" and not who did it."""
    result = judge(REGISTRY["attend_in_groups"], answer, seed)
    assert not result.passed and "The numbers are right." in result.message
    assert "torch also copies a broadcast or expanded operand of `@` or einsum." in result.message
