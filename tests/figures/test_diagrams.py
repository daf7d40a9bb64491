"""Heads and rotations: the lines go where the library's own functions say."""

import numpy as np
import pytest
import torch

from kvlearn.figures import heads_diagram, rope_clock, score_by_distance
from kvlearn.rope import apply_rope


def test_each_query_head_goes_to_its_own_kv_head():
    """Would catch h % num_kv_heads in place of h // group_size, the mistake that it should prevent."""
    ax = heads_diagram(6, 2).axes[0]
    ends = [tuple(line.get_xdata()) for line in ax.lines]
    kv_places = [1.0, 4.0]  # the middle of heads 0 to 2, and of 3 to 5
    assert ends == [(head, kv_places[head // 3]) for head in range(6)]
    assert "K/V head 1 serves query heads 3 to 5" in heads_diagram(6, 2).alt


@pytest.mark.parametrize(("kv_heads", "name"), [(6, "multi-head"), (1, "multi-query"), (3, "grouped-query")])
def test_the_kinds_of_sharing_have_their_names(kv_heads, name):
    """Would catch MQA called GQA, or MHA drawn as sharing."""
    assert name in heads_diagram(6, kv_heads).caption


@pytest.mark.parametrize("kv_heads", [0, 4])
def test_heads_that_do_not_divide_are_refused(kv_heads):
    """Would catch query heads left without a key/value head."""
    with pytest.raises(ValueError, match=f"num_kv_heads={kv_heads}"):
        heads_diagram(6, kv_heads)


def test_hands_stand_where_apply_rope_turns_a_pair():
    """Would catch a frequency that uses D/2 for D, a pair's number doubled, or hands turning backwards."""
    head_dim, theta, positions, pairs = 10, 500.0, [0, 2, 5], [0, 3]
    picture = rope_clock(positions, head_dim, theta, pairs=pairs)
    x = torch.zeros(1, 1, len(positions), head_dim, dtype=torch.float64)
    x[..., : head_dim // 2] = 1.0  # each pair (i, i + D/2) points along its first coordinate
    turned = apply_rope(x, torch.tensor([positions]), theta)[0, 0]
    for ax, pair in zip(picture.axes, pairs, strict=True):
        hands = [line.get_xydata()[1] for line in ax.lines if len(line.get_xydata()) == 2]
        expected = torch.stack((turned[:, pair], turned[:, pair + head_dim // 2]), dim=-1)
        assert np.allclose(hands, expected.numpy(), atol=1e-6)


def test_the_clocks_left_out_run_from_the_fastest_to_the_slowest_pair():
    """Would catch the slowest pair, the one that tells far from near, missing."""
    titles = [ax.get_title(loc="center") for ax in rope_clock(range(4), 64).axes]
    assert titles[0] == "pair 0" and titles[-1] == "pair 31" and len(titles) == 4
    assert rope_clock(range(4), 64).axes[0].get_xlabel() == "once around in\n6.3 positions"


def test_hands_that_lie_on_one_another_share_a_number():
    """Would catch a heap of unreadable numbers at the slow pair, or a hand that nobody can name."""
    picture = rope_clock(range(8), 64)
    fast, slow = picture.axes[0], picture.axes[-1]
    assert [text.get_text() for text in fast.texts] == list("01234567")
    assert [text.get_text() for text in slow.texts] == ["0–7"]


def test_long_numbers_stand_beside_their_hands():
    """Would catch a number of four digits that begins or ends on the hand that it names."""
    ax = rope_clock([0, 1500, 3000], 64, 1e5, pairs=[17]).axes[0]
    right, left = ax.texts[0], ax.texts[1]
    assert right.get_text() == "0" and right.get_position()[0] > 1 and right.get_ha() == "center"
    assert left.get_text() == "1,500" and left.get_position()[0] < -1 and left.get_ha() == "right"


def test_scores_are_drawn_against_their_distance():
    """Would catch a later line that hides the first where they agree: the widest is drawn first."""
    ax = score_by_distance(
        {"at 9": ([0, 1, 2], [3.0, 2.0, 1.0]), "at 90": ([0, 1, 2], [3.0, 2.0, 1.0])}
    ).axes[0]
    first, second = ax.lines[:2]
    assert first.get_xydata().tolist() == [[0, 3], [1, 2], [2, 1]]
    assert first.get_linewidth() > second.get_linewidth()
