"""Heat maps, masks and differences: the cells hold what was given, and words say the same."""

import numpy as np
import pytest
import torch

from kvlearn.attention import causal_mask
from kvlearn.figures import attention_map, mask_compare, mask_map, tensor_diff


def drawn(ax):
    """The array of the image in the axes."""
    return np.asarray(ax.images[0].get_array())


def hatched(ax):
    """The (row, column) of each hatched cell."""
    shapes = [patch.get_path().vertices for patch in ax.patches if patch.get_hatch()]
    cells = np.concatenate([shape.reshape(-1, 5, 2) for shape in shapes]) if shapes else np.empty((0, 5, 2))
    return {(round(cell[:4, 1].mean()), round(cell[:4, 0].mean())) for cell in cells}


def labels(ticks):
    return [tick.get_text() for tick in ticks]


def weights(heads, queries, keys):
    return torch.randn(heads, queries, keys, generator=torch.Generator().manual_seed(1)).softmax(-1)


def test_each_head_is_drawn_with_queries_as_rows():
    """Would catch a transposed map (keys as rows) and heads drawn in another order."""
    w = weights(3, 2, 5)
    picture = attention_map(w, ["x", "y"], key_tokens=list("abcde"))
    maps = [ax for ax in picture.axes if ax.images]
    for head, ax in enumerate(maps):
        assert np.array_equal(drawn(ax), w[head].double().numpy())
        assert ax.get_title(loc="left") == f"head {head}"
    assert len(maps) == 3
    assert labels(maps[0].get_yticklabels()) == ["x", "y"]
    assert labels(maps[0].get_xticklabels()) == list("abcde")
    assert "3 heads, 2 queries as rows, 5 keys as columns" in picture.alt


def test_all_heads_share_one_scale():
    """Would catch a pale head made to look as sure as a sharp one."""
    w = torch.stack([torch.full((2, 5), 0.2), torch.eye(5)[:2]])
    limits = {ax.images[0].get_clim() for ax in attention_map(w).axes if ax.images}
    assert limits == {(0.0, 1.0)}
    assert attention_map(w, top=0.5).axes[0].images[0].get_clim() == (0.0, 0.5)


def test_fewer_queries_than_keys_are_the_last_tokens():
    """Would catch the queries of a decode step labelled with the first tokens of the text."""
    ax = attention_map(weights(1, 2, 5), list("abcde")).axes[0]
    assert labels(ax.get_yticklabels()) == ["d", "e"]
    assert labels(ax.get_xticklabels()) == list("abcde")


def test_labels_are_left_out_before_they_overlap():
    """Would catch forty labels written over one another, which nobody can read."""
    ax = attention_map(weights(4, 40, 40)).axes[0]
    rows = ax.get_yticks()
    assert 8 <= len(rows) <= 20 and rows[0] == 0
    assert all(text == str(int(row)) for text, row in zip(labels(ax.get_yticklabels()), rows, strict=True))
    assert len(attention_map(weights(1, 2, 9)).axes[0].get_xticks()) == 9


def test_masked_cells_are_hatched():
    """Would catch a forbidden cell that looks like a weight of zero."""
    mask = causal_mask(2, 4)
    ax = attention_map(weights(1, 2, 4), mask=mask).axes[0]
    assert hatched(ax) == {(0, 3)}
    written = [text.get_position() for text in ax.texts]  # (column, row): no number in the hatched cell
    assert (3, 0) not in written and len(written) == 7


def test_attention_map_refuses_a_batch():
    """Would catch (B, H, L, S) drawn as if the batch were heads."""
    with pytest.raises(ValueError, match=r"\(2, 3, 4, 5\).*weights\[0\]"):
        attention_map(torch.rand(2, 3, 4, 5))


def test_mask_map_marks_who_may_be_seen():
    """Would catch the mask drawn inverted: True is what may be seen."""
    picture = mask_map(causal_mask(3, 5))
    ax = picture.axes[0]
    assert hatched(ax) == {(0, 3), (0, 4), (1, 4)}
    assert labels(ax.get_yticklabels()) == ["2", "3", "4"]  # the queries are the last of the keys
    assert "see 3, 4, 5 keys" in picture.alt


def test_mask_map_takes_a_position_mask_of_one_row():
    """Would catch a refusal of (1, 1, L, S), which position_mask returns."""
    assert hatched(mask_map(causal_mask(2, 3)[None, None]).axes[0]) == {(0, 2)}


@pytest.mark.parametrize("wrong", [torch.ones(2, 3), torch.ones(2, 3, 4, dtype=torch.bool)])
def test_mask_map_refuses_what_is_no_mask(wrong):
    """Would catch a mask of 0 and -inf, or of a batch, drawn as something that it is not."""
    with pytest.raises(ValueError, match="booleans"):
        mask_map(wrong)


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (4, 4), (1, 7)])
def test_mask_compare_equals_the_library_and_torch(queries, keys):
    """pytorch/pytorch#108108: is_causal aligns the first query with the first key; ours, last with last."""
    right, first = (hatched(ax) for ax in mask_compare(queries, keys).axes)
    assert right == {tuple(cell) for cell in (~causal_mask(queries, keys)).nonzero().tolist()}
    torchs = torch.ones(queries, keys, dtype=torch.bool).tril()
    assert first == {tuple(cell) for cell in (~torchs).nonzero().tolist()}


def test_mask_compare_says_when_there_is_no_difference():
    """Would catch a caption that speaks of hidden cells where there are none."""
    assert "the same" in mask_compare(4, 4).caption
    assert "6 cells" in mask_compare(2, 5).caption  # 4 + 5 that should be seen, 1 + 2 that are


def test_tensor_diff_shows_the_largest_difference_and_exact_zeros():
    """Would catch a difference averaged away, heads or channels taken for positions, and 1e-9 shown as 0."""
    a = [torch.zeros(1, 2, 4, 3, dtype=torch.float64) for _ in range(2)]
    b = [layer.clone() for layer in a]
    b[1][0, 1, 2, 0] = -1e-9
    b[1][0, 0, 2, 1] = 1e-12
    picture = tensor_diff(a, b, list("wxyz"))
    grid = picture.axes[0].images[0].get_array()
    assert grid.shape == (2, 4)
    assert grid[1, 2] == 1e-9 and np.ma.count(grid) == 1
    words = {text.get_position(): text.get_text() for text in picture.axes[0].texts}
    assert words.pop((2, 1)) == "1e-09" and set(words.values()) == {"0"} and len(words) == 7
    assert "Layers that changed: 1." in picture.alt


def test_tensor_diff_writes_numbers_as_a_beginner_reads_them():
    """Would catch 8e-02 for 0.08, 0.00 for more than nothing, and a colour bar that hides its scale."""
    b = torch.tensor([0.0, 1e-7, 0.0041, 0.0834, 1.0, 1234.0]).view(6, 1)
    picture = tensor_diff([torch.zeros(6, 1)], [b])
    words = [text.get_text() for text in picture.axes[0].texts]
    assert words == ["0", "1e-07", "0.004", "0.08", "1.00", "1,234"]
    assert "logarithmic" in picture.axes[1].get_ylabel()


def test_the_dot_for_a_blank_is_explained_where_it_stands():
    """Would catch a sign in the labels that no word speaks of, or such words where there is none."""
    a = torch.zeros(1, 2, 3)
    assert "stands for a blank" in tensor_diff(a, a, ["The", " end"]).caption
    assert "stands for a blank" not in tensor_diff(a, a, ["The", "end"]).caption
    w = weights(1, 2, 3)
    assert "stands for a blank" in attention_map(w, ["a", " b"], key_tokens=list("abc")).caption
    assert "stands for a blank" in attention_map(w, ["a", "b"], key_tokens=["a", "b", " c"]).caption
    assert "stands for a blank" not in attention_map(w, list("abc")).caption


def test_tensor_diff_takes_rounding_for_no_change():
    """Would catch a picture in which a float's last digits look like a change, or a change like rounding."""
    a = torch.zeros(2, 3, 4)
    b = a.clone()
    b[0, 1, 0], b[1, 2, 0] = 1e-7, 1e-5
    picture = tensor_diff(a, b, rounding=1e-6)
    grid = picture.axes[0].images[0].get_array()
    assert np.ma.count(grid) == 1 and abs(grid[1, 2] - 1e-5) < 1e-9
    assert picture.caption.startswith("0 means equal up to rounding.")
    assert "zero up to rounding" in tensor_diff(a, a, rounding=1e-6).alt


def test_tensor_diff_compares_the_positions_that_both_have():
    """Would catch a run with one more token that is refused, or compared from the end."""
    a, b = [torch.arange(12.0).view(4, 3)], [torch.arange(15.0).view(5, 3)]
    picture = tensor_diff(a, b)
    assert "Every cell is exactly zero" in picture.alt and "1 layers by 4 positions" in picture.alt


def test_tensor_diff_refuses_other_layers():
    """Would catch layer 1 of one run compared with layer 0 of another."""
    with pytest.raises(ValueError, match="3 and 2 layers"):
        tensor_diff([torch.zeros(2, 2)] * 3, [torch.zeros(2, 2)] * 2)
