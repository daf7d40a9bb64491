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


def keys_by_broadcasting(latent, matrices):
    return (matrices[None, :, None] * latent[:, :, :, None]).sum(dim=-1)


def keys_token_by_token(latent, matrices):
    """A product of a matrix and a vector, which torch's own counter of operations passes over."""
    return torch.stack(
        [torch.stack([torch.stack([w @ c for c in row[0]]) for w in matrices]) for row in latent]
    )


@pytest.mark.slow
@pytest.mark.parametrize("made_by", [keys_by_broadcasting, keys_token_by_token])
def test_the_expanded_form_is_seen_without_a_matrix_product(made_by):
    """Only matrix products were counted: the same work as products and sums was taken for absorbed."""

    def scores(q_nope, q_rope, latent, rope_key, w_uk):
        width = q_nope.shape[-1] + q_rope.shape[-1]
        return (q_nope @ made_by(latent, w_uk).mT + q_rope @ rope_key.mT) * width**-0.5

    def values(weights, latent, w_uv):
        return weights @ made_by(latent, w_uv)

    for name, answer in (("absorbed_scores", scores), ("absorbed_values", values)):
        message = judge(REGISTRY[name], answer).message
        assert "The numbers are right. But it took as much work as making every head's" in message


def test_work_outside_torch_is_refused():
    """numpy's operations and bytes are not seen, so whatever was done there was cheap."""

    def scores(q_nope, q_rope, latent, rope_key, w_uk):
        keys = torch.from_numpy(latent.numpy() @ w_uk.numpy().swapaxes(-1, -2))
        return (q_nope @ keys.mT + q_rope @ rope_key.mT) * (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5

    def groups(q, k, v):
        k, v = (torch.tensor(t.tolist(), dtype=t.dtype) for t in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    for name, answer in (("absorbed_scores", scores), ("attend_in_groups", groups)):
        assert "please leave the numbers in tensors" in judge(REGISTRY[name], answer).message
