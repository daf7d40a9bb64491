"""Rotary positions against transformers' Llama and against complex numbers."""

import cmath

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from kvlearn.rope import apply_rope, rotary_angles

B, H, L, D, THETA = 2, 3, 5, 8, 700.0
POSITIONS = torch.tensor([[0, 1, 2, 3, 4], [-1, 7, 8, 61, 900]])


def draw(dtype=torch.float64, dim=D, seed=0):
    return torch.randn(B, H, L, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


def theirs(x, positions, theta, dim):
    config = LlamaConfig(
        hidden_size=3 * (dim + 1),
        num_attention_heads=3,
        head_dim=dim,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    return apply_rotary_pos_emb(x, x, cos, sin)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim, theta", [(8, 700.0), (64, 10000.0), (2, 10000.0), (18, 1e6)])
def test_apply_rope_is_transformers(dtype, dim, theta):
    """Interleaved pairs, a sign, or an exponent of i/D instead of 2i/D: the model would speak nonsense."""
    x = draw(dtype, dim)
    ours = apply_rope(x, POSITIONS, theta)
    assert ours.dtype == dtype and ours.shape == x.shape
    assert torch.equal(ours, theirs(x, POSITIONS, theta, dim))


def turned_by_complex_numbers(x, theta):
    """The formula itself: pair i is one complex number, times e^(i p / theta^(2i/D))."""
    turned = torch.empty_like(x)
    for b in range(B):
        for t, position in enumerate(POSITIONS[b].tolist()):
            for i in range(D // 2):
                turn = cmath.exp(1j * position / theta ** (2 * i / D))
                for h in range(H):
                    pair = complex(x[b, h, t, i], x[b, h, t, i + D // 2]) * turn
                    turned[b, h, t, i], turned[b, h, t, i + D // 2] = pair.real, pair.imag
    return turned


def test_apply_rope_turns_each_pair_by_its_angle():
    """Would catch a wrong pairing, sign or exponent that transformers shares."""
    x = draw()
    assert torch.allclose(apply_rope(x, POSITIONS, THETA), turned_by_complex_numbers(x, THETA), atol=1e-3)


def test_position_zero_is_left_alone_and_lengths_stay():
    """A rotation changes no length; the position 0 turns by nothing."""
    x = draw()
    turned = apply_rope(x, POSITIONS, THETA)
    assert torch.equal(turned[0, :, 0], x[0, :, 0])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6)


def test_scores_know_the_distance_alone():
    """What relative means: moving query and key by 11 positions leaves their dot product as it was."""
    q, k = draw(seed=1), draw(seed=2)
    near = torch.arange(L).expand(B, L)
    scores = apply_rope(q, near, THETA) @ apply_rope(k, near, THETA).transpose(-2, -1)
    moved = apply_rope(q, near + 11, THETA) @ apply_rope(k, near + 11, THETA).transpose(-2, -1)
    assert torch.allclose(scores, moved, atol=1e-4)
    assert not torch.allclose(scores, q @ k.transpose(-2, -1), atol=0.1)


def test_angles_are_float32_even_for_bfloat16():
    """In bfloat16 the positions 1000 and 1001 are the same number, and so would be their angles."""
    positions = torch.tensor([[1000, 1001]])
    angles = rotary_angles(positions, 4, 10000.0)
    assert angles.dtype == torch.float32 and angles.shape == (1, 2, 2)
    assert torch.allclose(angles[0], torch.tensor([[1000.0, 10.0], [1001.0, 10.01]]))
    x = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
    turned = apply_rope(x, positions, 10000.0)
    assert not torch.equal(turned[0, 0, 0], turned[0, 0, 1])


def test_apply_rope_returns_a_new_tensor():
    """Turning in place would turn the projection's own output, and a second call would turn it twice."""
    x = draw()
    before = x.clone()
    turned = apply_rope(x, POSITIONS, THETA)
    assert torch.equal(x, before)
    assert turned.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_angles_are_made_where_the_positions_are():
    """pytorch/executorch#19174: a table on the default device, beside positions on another."""
    with torch.device("meta"):
        angles = rotary_angles(POSITIONS, 6, 123.0)
    assert angles.device.type == "cpu"
    assert rotary_angles(POSITIONS.to("meta"), 6, 123.0).device.type == "meta"


def test_no_call_leaves_anything_behind_for_the_next():
    """A memo filled under FakeTensorMode or in a transform held tensors without numbers: from then on every
    call with the same theta failed, for the whole process. Each theta here is used nowhere else."""
    x, ordinary = draw(torch.float32), {}
    for theta in (811.0, 812.0, 813.0, 814.0):
        ordinary[theta] = turned_by_complex_numbers(x, theta)
    with FakeTensorMode() as mode:
        apply_rope(mode.from_tensor(x), mode.from_tensor(POSITIONS), 811.0)
    torch.func.vmap(lambda one: apply_rope(one[None], POSITIONS[:1], 812.0)[0])(x)
    with torch.inference_mode():
        apply_rope(x, POSITIONS, 813.0)
    with torch.device("meta"):
        apply_rope(x, POSITIONS, 814.0)
    for theta, expected in ordinary.items():
        q = x.clone().requires_grad_()
        turned = apply_rope(q, POSITIONS, theta)
        turned.sum().backward()
        assert torch.allclose(turned, expected, atol=1e-3) and q.grad.isfinite().all()
        with FakeTensorMode() as mode:  # nor does an ordinary call disturb a later one in a mode
            fake = apply_rope(mode.from_tensor(x), mode.from_tensor(POSITIONS), theta)
        assert fake.shape == x.shape


@pytest.mark.parametrize(
    "shape, positions, words",
    [
        ((B, H, L, 7), POSITIONS, "head_dim must be even; got 7"),
        ((B, H, L, D), POSITIONS[:, 1:], "(2, 5); got positions of shape (2, 4)"),
        ((B, H, L, D), POSITIONS[0], "got positions of shape (5,)"),
        ((B, H, L, D), POSITIONS[:1], "got positions of shape (1, 5)"),
    ],
)
def test_what_cannot_be_turned(shape, positions, words):
    """Positions of one row for all rows are right only until a row is padded."""
    with pytest.raises(ValueError) as error:
        apply_rope(torch.zeros(shape), positions, THETA)
    assert words in str(error.value)
