"""multi_head_attention: projections, several heads, and the way back.

"Attention Is All You Need" (Vaswani et al., arXiv 1706.03762), section 3.2.2. Weights are
(out, in), as in torch.nn.Linear. The oracle takes one head after the other, in float64.
"""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_01.attention import attention
from kvlearn.checks.lesson_01.weights import BY_D, CAUSAL, NO_SCALE, causal


def _multi_head(x, w_q, w_k, w_v, w_o, num_heads):
    """Oracle: one head after the other, each with its own rows of the weights."""
    x64 = x.double()
    D = w_q.shape[0] // num_heads
    heads = []
    for h in range(num_heads):
        rows = slice(h * D, (h + 1) * D)
        q, k, v = (torch.einsum("blw,dw->bld", x64, w[rows].double()) for w in (w_q, w_k, w_v))
        heads.append(attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1))[:, 0])
    return torch.einsum("bli,wi->blw", torch.cat(heads, -1), w_o.double()).to(x.dtype)


def _multi_head_cases(generator):
    draws = [
        # batch, tokens, width, inner, heads
        ((2, 5, 7, 12, 3), torch.float32, "", "3 heads"),
        ((3, 4, 10, 10, 2), torch.float32, "width inner", "2 heads as wide as the input"),
        ((2, 1, 6, 12, 4), torch.float64, "", "one token in float64"),
    ]
    cases = []
    for (B, L, width, inner, heads), dtype, equal, label in draws:
        inputs = {"x": randn(generator, B, L, width, dtype=dtype)}
        for name in ("w_q", "w_k", "w_v"):
            inputs[name] = randn(generator, inner, width, dtype=dtype)
        inputs["w_o"] = randn(generator, width, inner, dtype=dtype)
        inputs["num_heads"] = heads
        cases.append(Case(inputs, label, equal))
    return cases


def _split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _merge(x):
    return x.transpose(1, 2).flatten(2)


def _mha(x, w_q, w_k, w_v, w_o, num_heads, split=_split, merge=_merge, scale=None, turned=False):
    """Multi-head attention with parts that a misconception exchanges."""
    w_q, w_k, w_v, w_o = (w if turned else w.T for w in (w_q, w_k, w_v, w_o))
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return merge((q @ k.transpose(-1, -2) * scale).softmax(-1) @ v) @ w_o


def _with(**parts):
    def answer(x, w_q, w_k, w_v, w_o, num_heads):
        return _mha(x, w_q, w_k, w_v, w_o, num_heads, **parts)

    return answer


def _scrambled_split(x, num_heads):
    B, L, inner = x.shape
    return x.reshape(B, num_heads, L, inner // num_heads)


def _scrambled_merge(x):
    B, H, L, D = x.shape
    return x.reshape(B, L, H * D)


def _never_moved(x, num_heads):
    return x.unflatten(-1, (num_heads, -1))


def _merged_where_they_stood(x):
    return x.flatten(2)


def _no_output_projection(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_v, torch.eye(w_o.shape[1], dtype=x.dtype), num_heads)


def _causal(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (_split(x @ w.T, num_heads) for w in (w_q, w_k, w_v))
    return _merge(causal(q, k) @ v) @ w_o.T


def _scaled_by_d(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_v, w_o, num_heads, scale=num_heads / w_q.shape[0])


def _scaled_by_all_heads(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_v, w_o, num_heads, scale=w_q.shape[0] ** -0.5)


def _scaled_by_input(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_v, w_o, num_heads, scale=x.shape[-1] ** -0.5)


def _one_wide_head(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_v, w_o, 1)


def _keys_projected_as_values(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_k, w_o, num_heads)


def _values_first(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_v, w_k, w_o, num_heads)


MULTI_HEAD_ATTENTION = Exercise(
    name="multi_head_attention",
    lesson=1,
    title="Several heads",
    minutes=25,
    difficulty=2,
    why="This is the attention of a whole layer, with its weights. Two of the tensors made in "
    "here, and no others, are what a KV cache keeps.",
    signature="multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads)",
    reference=_multi_head,
    cases=_multi_head_cases,
    axes={
        "x": "batch token width",
        "w_q": "inner width",
        "w_k": "inner width",
        "w_v": "inner width",
        "w_o": "width inner",
        "num_heads": "head",
        "return": "batch token entry",
    },
    misconceptions=(
        Misconception(
            "the weights were used the wrong way round",
            _with(turned=True),
            "The weights are stored as (out, in), as in torch.nn.Linear. Where the two sizes "
            "agree nothing complains, and the numbers are wrong; elsewhere the shapes clash.",
            raises=True,
        ),
        Misconception(
            "the output projection is missing",
            _no_output_projection,
            "The heads stand side by side and have not met: w_o was never used. It is what mixes "
            "them, and what brings them back to the width of x.",
        ),
        Misconception(
            "the heads were split with a view alone, and tokens were scrambled",
            _with(split=_scrambled_split),
            "The shape is (batch, head, token, channel) and the numbers are those of other "
            "tokens. A reshape moves nothing in memory. (kvlearn.check of split_heads tells.)",
        ),
        Misconception(
            "the heads were merged with a view alone, and tokens were scrambled",
            _with(merge=_scrambled_merge),
            "Attention itself is right. Then each token's vector was filled with numbers of "
            "several tokens. (kvlearn.check of merge_heads tells.)",
        ),
        Misconception(
            "the heads were split and merged with views alone",
            _with(split=_scrambled_split, merge=_scrambled_merge),
            "Two wrongs that fit each other's shapes. Tokens were scrambled on the way in, and the way out "
            "cannot put them back: attention has mixed them by then. (kvlearn.check of split_heads tells.)",
        ),
        Misconception(
            "the heads of one token attended to each other",
            _with(split=_never_moved, merge=_merged_where_they_stood),
            "The head axis still stood behind the tokens, so each token was alone with its own "
            "heads and saw no other token.",
        ),
        Misconception(
            "scaled by the width of all heads together",
            _scaled_by_all_heads,
            "A dot product here runs over the channels of one head only, and it is their number "
            "that sets its spread.",
        ),
        Misconception(
            "scaled by the width of x",
            _scaled_by_input,
            "The width of the input is not what a dot product here runs over: it runs over the "
            "channels of one head.",
        ),
        Misconception(NO_SCALE[0], _with(scale=1.0), NO_SCALE[1]),
        Misconception(BY_D[0], _scaled_by_d, BY_D[1]),
        Misconception(CAUSAL[0], _causal, CAUSAL[1]),
        Misconception(
            "there was one wide head instead of several",
            _one_wide_head,
            "num_heads had no effect. With one head, every channel of a token follows the same "
            "weights; the point of several is that each looks elsewhere.",
        ),
        Misconception(
            "the values were projected with w_k",
            _keys_projected_as_values,
            "w_v was never used, so what is mixed are the keys.",
        ),
        Misconception(
            "w_k and w_v changed places",
            _values_first,
            "The queries were compared with the values, and the keys were mixed.",
        ),
    ),
    hints=(
        "Five steps: project three times, split, attend, merge, project back. Write the shape "
        "after each as a comment.",
        "A weight is (out, in). A token with `in` numbers should come out with `out` numbers: "
        "torch.nn.functional.linear does just this.",
        "Use your own functions: the two of the last assignment and the attention above. What "
        "is the last axis of q when attention sees it?",
    ),
)
