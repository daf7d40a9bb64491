"""The exercises of lesson 00: splitting and merging heads.

Both are nothing but bookkeeping of axes, and both have a wrong version with the right shape:
`view` to the final shape reads the same numbers in the same order, so tokens end up in
heads. (Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, section 3.2.2.)
"""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception

# -- split_heads ---------------------------------------------------------------------------


def _split_heads(x, num_heads):
    """Oracle: every number is put into its place by name."""
    B, L, width = x.shape
    D = width // num_heads
    out = torch.zeros(B, num_heads, L, D, dtype=x.dtype)
    for b in range(B):
        for h in range(num_heads):
            for token in range(L):
                for channel in range(D):
                    out[b, h, token, channel] = x[b, token, h * D + channel]
    return out


def _split_cases(generator):
    table = torch.tensor([[[0, 1, 2, 3], [10, 11, 12, 13]]])
    return [
        Case({"x": randn(generator, 2, 5, 12), "num_heads": 3}, "3 heads"),
        Case({"x": randn(generator, 3, 1, 8, dtype=torch.bfloat16), "num_heads": 2}, "one token in bfloat16"),
        Case({"x": randn(generator, 1, 6, 35, dtype=torch.float64), "num_heads": 5}, "float64"),
        Case({"x": randn(generator, 2, 5, 12), "num_heads": 1}, "one head"),
        Case({"x": randn(generator, 2, 3, 7), "num_heads": 7}, "heads of one channel", "width head"),
        Case({"x": table, "num_heads": 2}, "the example by hand", "token head"),
    ]


def _viewed_to_the_end(x, num_heads):
    B, L, width = x.shape
    return x.reshape(B, num_heads, L, width // num_heads)


def _turned_before_the_split(x, num_heads):
    B, L, width = x.shape
    return x.transpose(1, 2).reshape(B, num_heads, L, width // num_heads)


def _heads_not_moved(x, num_heads):
    B, L, width = x.shape
    return x.reshape(B, L, num_heads, width // num_heads)


def _channels_first(x, num_heads):
    B, L, width = x.shape
    return x.reshape(B, L, width // num_heads, num_heads).permute(0, 3, 1, 2)


def _head_count_as_size(x, num_heads):
    B, L, width = x.shape
    return x.reshape(B, L, width // num_heads, num_heads).transpose(1, 2)


def _heads_before_batch(x, num_heads):
    return _split_heads(x, num_heads).transpose(0, 1)


def _tokens_last(x, num_heads):
    return _split_heads(x, num_heads).transpose(2, 3)


def _heads_into_batch(x, num_heads):
    return _split_heads(x, num_heads).flatten(0, 1)


SPLIT_HEADS = Exercise(
    name="split_heads",
    lesson=0,
    title="Split the heads",
    minutes=10,
    difficulty=1,
    why="Each attention head works on its own slice of a token's numbers. Every cache in this "
    "course stores keys and values in the layout that this function makes.",
    signature="split_heads(x, num_heads)",
    reference=_split_heads,
    cases=_split_cases,
    axes={"x": "batch token width", "num_heads": "head", "return": "batch head token channel"},
    misconceptions=(
        Misconception(
            "the numbers were viewed into the final shape, and no axis was moved",
            _viewed_to_the_end,
            "The shape is right and the numbers are scrambled. A reshape keeps the order of the "
            "numbers in memory, so numbers of different tokens landed in one head: with one "
            "token it cannot be seen, with several it can.",
        ),
        Misconception(
            "tokens and width changed places before the width was split",
            _turned_before_the_split,
            "The shape is right and the numbers are scrambled. What lies side by side after that turn is "
            "one channel of all tokens, and that was cut into pieces.",
        ),
        Misconception(
            "the width was split, but the head axis still stands behind the tokens",
            _heads_not_moved,
            "This is (batch, token, head, channel). Attention works on one head at a time over "
            "all of its tokens, so heads belong before tokens.",
        ),
        Misconception(
            "the width was read as channel by channel, with the heads inside",
            _channels_first,
            "Each head owns one consecutive slice of the width. Here neighbouring numbers went "
            "to different heads.",
        ),
        Misconception(
            "num_heads was used as the size of a head",
            _head_count_as_size,
            "num_heads says how many heads there are, not how many channels each one has. The "
            "two are different numbers here, and the two axes have changed places.",
        ),
        Misconception(
            "batch and head changed places",
            _heads_before_batch,
            "The heads were moved too far forward: batch stays the first axis.",
        ),
        Misconception(
            "tokens and channels changed places",
            _tokens_last,
            "One axis too many was moved. The last axis holds the channels of one token in one "
            "head. (Keys are turned like this later, inside attention, and only there.)",
        ),
        Misconception(
            "the heads were folded into the batch",
            _heads_into_batch,
            "Some implementations do this to save a loop. Here heads and batch stay two axes, "
            "so that a cache can still tell whose keys it holds.",
        ),
    ),
    hints=(
        "Two steps: first give the width two axes, then move an axis. Say the name of each axis "
        "aloud after each step.",
        "Within the width, the numbers of head 0 come first, then those of head 1. Which of the "
        "two new axes is the outer one?",
        "A view never moves numbers. To move an axis there are transpose, permute and einops.rearrange.",
    ),
)


# -- merge_heads ---------------------------------------------------------------------------


def _merge_heads(x):
    """Oracle: the inverse, number by number."""
    B, H, L, D = x.shape
    out = torch.zeros(B, L, H * D, dtype=x.dtype)
    for b in range(B):
        for h in range(H):
            for token in range(L):
                for channel in range(D):
                    out[b, token, h * D + channel] = x[b, h, token, channel]
    return out


def _merge_cases(generator):
    table = torch.tensor([[[[0, 1], [10, 11]], [[2, 3], [12, 13]]]])
    split = (
        randn(generator, 2, 5, 12).unflatten(2, (3, 4)).transpose(1, 2)
    )  # still in the order of the tokens
    return [
        Case({"x": randn(generator, 2, 3, 5, 4)}, "3 heads"),
        Case({"x": randn(generator, 3, 2, 1, 4, dtype=torch.bfloat16)}, "one token in bfloat16"),
        Case({"x": randn(generator, 1, 5, 6, 7, dtype=torch.float64)}, "float64"),
        Case({"x": split}, "a view, as splitting gives it"),
        Case({"x": randn(generator, 2, 1, 5, 3)}, "one head"),
        Case({"x": randn(generator, 2, 4, 3, 1)}, "heads of one channel"),
        Case({"x": table}, "the example by hand", "head token channel"),
    ]


def _reshaped_at_once(x):
    B, H, L, D = x.shape
    return x.reshape(B, L, H * D)


def _channels_outside(x):
    B, H, L, D = x.shape
    return x.permute(0, 2, 3, 1).reshape(B, L, D * H)


def _tokens_merged_too(x):
    B, H, L, D = x.shape
    return x.transpose(1, 2).reshape(B, L * H, D)


def _heads_averaged(x):
    return x.mean(dim=1)


def _heads_added(x):
    return x.sum(dim=1)


def _left_apart(x):
    return x.transpose(1, 2)


MERGE_HEADS = Exercise(
    name="merge_heads",
    lesson=0,
    title="Merge the heads",
    minutes=5,
    difficulty=1,
    why="After attention each token is one vector again. Merging undoes splitting exactly, and "
    "it is the place where a wrong reshape goes unnoticed for longest: the model still runs.",
    signature="merge_heads(x)",
    reference=_merge_heads,
    cases=_merge_cases,
    axes={"x": "batch head token channel", "return": "batch token entry"},
    misconceptions=(
        Misconception(
            "reshaped at once, while the heads still stood before the tokens",
            _reshaped_at_once,
            "The shape is right and the numbers are scrambled: one token's vector now holds "
            "numbers of several tokens of one head.",
        ),
        Misconception(
            "the heads ended up inside the channels",
            _channels_outside,
            "The numbers of one head must stay side by side, as they were before splitting. "
            "Here they are dealt out like cards, one to each head in turn.",
        ),
        Misconception(
            "heads were merged with the tokens",
            _tokens_merged_too,
            "This gives every head a line of its own. A token has one vector, which all of its "
            "heads fill together.",
        ),
        Misconception(
            "the heads were averaged",
            _heads_averaged,
            "An average keeps only what the heads have in common. Merging keeps every number: "
            "the result is as wide as all heads together.",
            raises=True,  # torch takes no mean of whole numbers
        ),
        Misconception(
            "the heads were added up",
            _heads_added,
            "A sum cannot be undone. Merging keeps every number: the result is as wide as all "
            "heads together.",
        ),
        Misconception(
            "the head axis was moved back but never joined with the channels",
            _left_apart,
            "There are still four axes. A token's heads belong in one vector.",
        ),
    ),
    hints=(
        "Undo split_heads: the same two steps, backwards.",
        "Which axis must stand next to the channels before the two can become one?",
        "After a transpose, numbers that are neighbours in shape are no longer neighbours in "
        "memory, and `view` says so. `reshape` copies when it must.",
    ),
)

EXERCISES = (SPLIT_HEADS, MERGE_HEADS)
