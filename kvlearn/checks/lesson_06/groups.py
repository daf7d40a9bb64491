"""attend_in_groups: grouped heads (GQA, arXiv 2305.13245) that read their keys where they are stored."""

import math

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_06.costs import observe_memory


def attend_in_groups(q, k, v):
    """Oracle: one query and one head at a time, in float64."""
    B, Hq, L, D = q.shape
    group = Hq // k.shape[1]
    out = torch.zeros(B, Hq, L, v.shape[-1], dtype=q.dtype)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in (B, Hq, L))).tolist():
        keys, values = k[b, h // group].double(), v[b, h // group].double()
        out[b, h, i] = torch.softmax(keys @ q[b, h, i].double() / math.sqrt(D), dim=0) @ values
    return out


def _cases(generator):
    def draw(B, Hq, Hkv, L, S, D, label, dtype=torch.float32):
        q = randn(generator, B, Hq, L, D, dtype=dtype)
        k, v = (randn(generator, B, Hkv, S, D, dtype=dtype) for _ in range(2))
        return Case({"q": q, "k": k, "v": v}, label)

    # Groups so large that copies in the keys' own dtype take more than what is computed in float64.
    return [
        draw(3, 16, 2, 5, 70, 128, "16 query heads on 2"),
        draw(2, 21, 3, 1, 50, 64, "21 on 3, one query"),
        draw(1, 6, 1, 3, 50, 40, "6 on one, float64", torch.float64),
    ]


def _limit(case):
    """What the repeated keys alone would take."""
    q, k = case["q"], case["k"]
    return q.shape[1] // k.shape[1] * k.nbytes


def _attend(q, k, v, scale=None):
    weights = torch.softmax(q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale), dim=-1)
    return weights @ v


def _repeated(q, k, v):
    return _attend(q, *(t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v)))


def _tiled(q, k, v):
    return _attend(q, *(t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v)))


def _by_group(q, k, v, group_first=False, scale=None):
    """The frugal way, with the mistakes that it invites."""
    B, Hq, L, D = q.shape
    Hkv = k.shape[1]
    if group_first:  # head h is read as (h // Hkv, h % Hkv)
        tall = q.unflatten(1, (Hq // Hkv, Hkv)).transpose(1, 2).reshape(B, Hkv, -1, D)
        out = _attend(tall, k, v, scale)
        return out.view(B, Hkv, Hq // Hkv, L, D).transpose(1, 2).reshape(B, Hq, L, D)
    return _attend(q.reshape(B, Hkv, -1, D), k, v, scale).view(B, Hq, L, D)


def _queries_and_tokens_mixed(q, k, v):
    B, Hq, L, D = q.shape
    Hkv = k.shape[1]
    out = _attend(q.reshape(B, Hkv, -1, D), k, v)  # (B, Hkv, group * L, D), read back as (L, group)
    return out.view(B, Hkv, L, Hq // Hkv, D).transpose(2, 3).reshape(B, Hq, L, D)


ATTEND_IN_GROUPS = Exercise(
    name="attend_in_groups",
    lesson=6,
    title="Grouped heads without copies",
    minutes=15,
    difficulty=2,
    why="A cache of few heads saves nothing if every step first copies it out for all the query heads. "
    "The queries of a group can share the keys where they lie.",
    signature="attend_in_groups(q, k, v)",
    reference=attend_in_groups,
    cases=_cases,
    observe=observe_memory(
        attend_in_groups,
        _limit,
        "But on the way the keys or values were copied for each query head, and the cache is read as if it "
        "had all those heads. (torch also copies a broadcast or expanded operand of `@` or einsum.)",
    ),
    axes={
        "q": "batch head query channel",
        "k": "batch kv_head key channel",
        "v": "batch kv_head key channel",
        "return": "batch head query channel",
    },
    misconceptions=(
        Misconception(
            "the key/value heads were laid out 0 1 2 0 1 2 instead of 0 0 1 1 2 2",
            _tiled,
            "Query head h then reads head h % num_kv_heads. The query heads that share keys are neighbours.",
        ),
        Misconception(
            "the groups were made of every n-th query head",
            lambda q, k, v: _by_group(q, k, v, group_first=True),
            "The axis of heads was split into (group_size, num_kv_heads), and heads that are neighbours "
            "landed in different groups. The key/value head is the slow one of the two: neighbours share.",
        ),
        Misconception(
            "the results came back with heads and queries mixed up",
            _queries_and_tokens_mixed,
            "Inside a group the rows lie head by head, and in each head query by query. They have to be "
            "taken apart in the order in which they were put together.",
        ),
        Misconception(
            "the scale counts the group in",
            lambda q, k, v: _by_group(q, k, v, scale=(q.shape[-1] * (q.shape[1] // k.shape[1])) ** -0.5),
            "A score is one dot product over head_dim numbers, however many queries stand below one another.",
        ),
        Misconception(
            "the scores were not scaled",
            lambda q, k, v: _by_group(q, k, v, scale=1.0),
            "The division by the root of head_dim is missing, as in lesson 01.",
        ),
        Misconception(
            "all query heads read key/value head 0",
            lambda q, k, v: _by_group(q, k[:, :1], v[:, :1]),
            "With one key/value head that would be right. Here there are more, and the others went unread.",
        ),
        Misconception(
            "every key/value head was repeated for its query heads",
            _repeated,
            "repeat_interleave makes group_size copies of the whole cache, at every step and in every layer. "
            "The heads of a group read the same keys: put their queries together instead.",
        ),
    ),
    hints=(
        "Two queries of one head read the same keys, and nothing is copied for that: they are two rows of "
        "one matrix. Two heads of one group read the same keys as well.",
        "Query heads of a group are neighbours on the axis of heads. What shape has q when that axis is "
        "(num_kv_heads, group_size)?",
        "(group_size, L) may become one axis of rows: then q has as many heads as k. Multiplying five axes "
        "by four with `@` is no help: torch makes copies to match them.",
    ),
)
