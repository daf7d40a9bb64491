"""mean_pool_heads: fewer key/value heads for a trained model (arXiv 2305.13245)."""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception


def mean_pool_heads(weight, head_dim, num_kv_heads):
    """Oracle: every row of the new matrix by itself, from the rows that it stands for."""
    old = weight.shape[0] // head_dim
    group = old // num_kv_heads
    rows = []
    for head in range(num_kv_heads):
        for channel in range(head_dim):
            mine = [weight[(head * group + g) * head_dim + channel].double() for g in range(group)]
            rows.append((sum(mine) / group).to(weight.dtype))
    return torch.stack(rows)


def _cases(generator):
    def draw(old, new, head_dim, hidden, label, dtype=torch.float32):
        weight = randn(generator, old * head_dim, hidden, dtype=dtype)
        return Case({"weight": weight, "head_dim": head_dim, "num_kv_heads": new}, label)

    return [
        draw(12, 3, 2, 11, "12 heads to 3"),
        draw(6, 2, 5, 7, "6 heads to 2"),
        draw(8, 4, 6, 13, "8 heads to 4, float64", torch.float64),
        draw(9, 1, 4, 10, "9 heads to one"),
    ]


def _heads(weight, head_dim):
    return weight.unflatten(0, (-1, head_dim))  # (old heads, D, hidden)


def _pooled(weight, head_dim, num_kv_heads):
    return _heads(weight, head_dim).unflatten(0, (num_kv_heads, -1)).mean(dim=1).flatten(0, 1)


def _every_nth(weight, head_dim, num_kv_heads):
    return _heads(weight, head_dim).unflatten(0, (-1, num_kv_heads)).mean(dim=0).flatten(0, 1)


def _summed(weight, head_dim, num_kv_heads):
    return _heads(weight, head_dim).unflatten(0, (num_kv_heads, -1)).sum(dim=1).flatten(0, 1)


def _first(weight, head_dim, num_kv_heads):
    return _heads(weight, head_dim).unflatten(0, (num_kv_heads, -1))[:, 0].flatten(0, 1)


def _cut(weight, head_dim, num_kv_heads):
    return weight[: num_kv_heads * head_dim].clone()


def _neighbouring_rows(weight, head_dim, num_kv_heads):
    return weight.unflatten(0, (num_kv_heads * head_dim, -1)).mean(dim=1)


def _rows_by_channel(weight, head_dim, num_kv_heads):
    return weight.unflatten(0, (head_dim, num_kv_heads, -1)).mean(dim=2).transpose(0, 1).flatten(0, 1)


def _repeated(weight, head_dim, num_kv_heads):
    pooled = _pooled(weight, head_dim, num_kv_heads).unflatten(0, (num_kv_heads, head_dim))
    return pooled.repeat_interleave(weight.shape[0] // head_dim // num_kv_heads, dim=0).flatten(0, 1)


def _number_for_size(weight, head_dim, num_kv_heads):
    return _heads(weight, head_dim).unflatten(0, (-1, num_kv_heads)).mean(dim=1).flatten(0, 1)


def _heads_as_an_axis(weight, head_dim, num_kv_heads):
    return _pooled(weight, head_dim, num_kv_heads).unflatten(0, (num_kv_heads, head_dim))


MEAN_POOL_HEADS = Exercise(
    name="mean_pool_heads",
    lesson=6,
    title="Pool the heads of a trained model",
    minutes=10,
    difficulty=2,
    why="So a model with many key/value heads becomes one with few, without starting its training again. "
    "What comes out is where further training begins.",
    signature="mean_pool_heads(weight, head_dim, num_kv_heads)",
    reference=mean_pool_heads,
    cases=_cases,
    axes={
        "weight": "row hidden",
        "head_dim": "channel",
        "num_kv_heads": "new_heads",
        "return": "row hidden",
    },  # fmt: skip
    misconceptions=(
        Misconception(
            "every n-th head was pooled, not neighbours",
            _every_nth,
            "The query heads that will share a head are neighbours, and so are the heads that they have read "
            "until now. A mean of others is nobody's key.",
        ),
        Misconception(
            "the heads were added up instead of averaged",
            _summed,
            "A sum of keys makes scores as many times larger than the mean's as heads went into it. Where "
            "the heads agree, the mean keeps the range that the model knows.",
        ),
        Misconception(
            "the first head of each group was kept, the others dropped",
            _first,
            "That too makes fewer heads, and of the others nothing is left. The mean keeps something of "
            "each.",
        ),
        Misconception(
            "the first heads were kept and the rest cut off",
            _cut,
            "The query heads of the later groups would read keys that were made for other queries.",
        ),
        Misconception(
            "rows that lie next to each other were averaged",
            _neighbouring_rows,
            "Neighbouring rows are channels of one and the same head. A channel is averaged with the same "
            "channel of another head.",
        ),
        Misconception(
            "the rows were read channel by channel, not head by head",
            _rows_by_channel,
            "A projection's rows lie head by head: first all channels of head 0, then all of head 1.",
        ),
        Misconception(
            "num_kv_heads was taken for the size of a group",
            _number_for_size,
            "num_kv_heads is how many heads there are afterwards. How many become one is another number.",
        ),
        Misconception(
            "the mean stands in the place of every old head",
            _repeated,
            "The heads are equal now, and there are as many as before. The cache shrinks only if each is "
            "kept once.",
        ),
        Misconception(
            "the result has an axis of heads",
            _heads_as_an_axis,
            "The numbers are right. A projection is a matrix: its rows are the channels of all heads, one "
            "head below the other.",
        ),
    ),
    hints=(
        "The rows are (heads, head_dim), flattened. Which axes do you need to see which heads become one?",
        "Heads 0, 1, 2 become head 0 if six become two: so the axis of heads is (what remains, what is "
        "averaged away).",
        "Three axes of rows: the new head, which of its old heads, the channel. One of them goes.",
    ),
)
