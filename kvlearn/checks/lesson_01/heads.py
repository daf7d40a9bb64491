"""multi_head_attention: projections, several heads, and the way back.

"Attention Is All You Need" (Vaswani et al., arXiv 1706.03762), section 3.2.2. Weights are
(out, in), as in torch.nn.Linear. The oracle takes one head after the other, in float64.
"""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_01 import heads_mistakes as mistakes
from kvlearn.checks.lesson_01 import weights as w
from kvlearn.checks.lesson_01.attention import attention


def _multi_head(x, w_q, w_k, w_v, w_o, num_heads):
    """Oracle: one head after the other, each with its own rows of the weights."""
    x64 = x.double()
    D = w_q.shape[0] // num_heads
    heads = []
    for h in range(num_heads):
        rows = slice(h * D, (h + 1) * D)
        q, k, v = (torch.einsum("blw,dw->bld", x64, m[rows].double()) for m in (w_q, w_k, w_v))
        heads.append(attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1))[:, 0])
    return torch.einsum("bli,wi->blw", torch.cat(heads, -1), w_o.double()).to(x.dtype)


def _multi_head_cases(generator):
    draws = [
        # batch, tokens, width, inner, heads
        ((2, 5, 7, 12, 3), torch.float32, 1.0, "", "3 heads"),
        ((3, 4, 10, 10, 2), torch.float32, 1.0, "width inner", "2 heads as wide as the input"),
        ((2, 1, 6, 12, 4), torch.float64, 1.0, "", "one token in float64"),
        ((2, 5, 7, 12, 6), torch.bfloat16, 0.3, "", "6 heads in bfloat16"),
        ((1, 3, 5, 8, 1), torch.float32, 1.0, "", "one head"),
        ((2, 4, 3, 10, 5), torch.float64, 60.0, "", "large scores"),
    ]
    cases = []
    for (B, L, width, inner, heads), dtype, size, equal, label in draws:
        inputs = {"x": randn(generator, B, L, width, dtype=dtype, size=size)}
        if label == "large scores":
            inputs["x"][:, 0] = 0  # and token 0 has none
        for name in ("w_q", "w_k", "w_v"):
            inputs[name] = randn(generator, inner, width, dtype=dtype)
        inputs["w_o"] = randn(generator, width, inner, dtype=dtype)
        inputs["num_heads"] = heads
        cases.append(Case(inputs, label, equal))
    by_hand = {"x": torch.tensor([[[2.0, 0], [0, 2]]])} | dict.fromkeys(
        ("w_q", "w_k", "w_v", "w_o"), torch.eye(2)
    )
    return [*cases, Case(by_hand | {"num_heads": 2}, "the example by hand", "token width inner head")]


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
            mistakes.with_matrices(lambda *matrices: [m.mT for m in matrices]),
            "The weights are stored as (out, in), as in torch.nn.Linear. Where the two sizes "
            "agree nothing complains, and the numbers are wrong; elsewhere the shapes clash.",
            raises=True,
        ),
        Misconception(
            "w_o alone was used the wrong way round",
            mistakes.with_matrices(lambda q, k, v, o: (q, k, v, o.mT)),
            "The projections of q, k and v are right. w_o is stored as (out, in) too: here the result is the "
            "out, `width` numbers, and the heads together are the in.",
            raises=True,
        ),
        Misconception(
            "the width of x was taken for the width of all heads together",
            mistakes.size_from_the_width,
            "`inner`, the rows of w_q, equals the width of x in many models, not in all. Where it does not, "
            "a head has not width // num_heads channels, and the merged heads do not have the shape of x.",
            raises=True,
        ),
        Misconception(
            "the output projection is missing",
            mistakes.no_output_projection,
            "The heads stand side by side and have not met: w_o was never used. It is what mixes "
            "them, and what brings them back to the width of x.",
        ),
        Misconception(
            "the heads were split with a view alone, and tokens were scrambled",
            mistakes.with_parts(split=mistakes.scrambled_split),
            "The shape is (batch, head, token, channel) and the numbers are those of other "
            "tokens. A reshape moves nothing in memory. (kvlearn.check of split_heads tells.)",
        ),
        Misconception(
            "the heads were merged with a view alone, and tokens were scrambled",
            mistakes.with_parts(merge=mistakes.scrambled_merge),
            "Attention itself is right. Then each token's vector was filled with numbers of "
            "several tokens. (kvlearn.check of merge_heads tells.)",
        ),
        Misconception(
            "the heads were split and merged with views alone",
            mistakes.with_parts(split=mistakes.scrambled_split, merge=mistakes.scrambled_merge),
            "Two wrongs that fit each other's shapes. Tokens were scrambled on the way in, and the way out "
            "cannot put them back: attention has mixed them by then. (kvlearn.check of split_heads tells.)",
        ),
        Misconception(
            "the projections were read channel by channel, with the heads inside",
            mistakes.with_parts(split=mistakes.channel_by_channel),
            "Each head owns one consecutive slice of what w_q, w_k and w_v give. Here neighbouring numbers "
            "went to different heads. (kvlearn.check of split_heads tells.)",
        ),
        Misconception(
            "the heads ended up inside the channels",
            mistakes.with_parts(merge=mistakes.channels_outside),
            "Attention itself is right. In each token's vector the numbers of one head should lie side by "
            "side before w_o meets them. (kvlearn.check of merge_heads tells.)",
        ),
        Misconception(
            "the heads were inside the channels, on the way in and on the way out",
            mistakes.with_parts(split=mistakes.channel_by_channel, merge=mistakes.channels_outside),
            "Splitting and merging fit each other, and the heads still got the wrong channels: each head "
            "owns one consecutive slice of the projections.",
        ),
        Misconception(
            "the heads of one token attended to each other",
            mistakes.with_parts(split=mistakes.never_moved, merge=mistakes.merged_where_they_stood),
            "The head axis still stood behind the tokens, so each token was alone with its own "
            "heads and saw no other token.",
        ),
        Misconception(
            "scaled by the width of all heads together",
            mistakes.with_scale(lambda D, heads, width: (D * heads) ** -0.5),
            "A dot product here runs over the channels of one head only, and it is their number "
            "that sets its spread.",
        ),
        Misconception(
            "scaled by the width of x",
            mistakes.with_scale(lambda D, heads, width: width**-0.5),
            "The width of the input is not what a dot product here runs over: it runs over the "
            "channels of one head.",
        ),
        Misconception(w.NO_SCALE[0], mistakes.with_parts(weights=w.unscaled), w.NO_SCALE[1]),
        Misconception(w.BY_D[0], mistakes.with_parts(weights=w.scaled_by_d), w.BY_D[1]),
        Misconception(w.CAUSAL[0], mistakes.with_parts(weights=w.causal), w.CAUSAL[1]),
        Misconception(w.QUERIES[0], mistakes.with_parts(weights=w.over_queries), w.QUERIES[1]),
        Misconception(w.HEADS[0], mistakes.with_parts(weights=w.over_heads), w.HEADS[1]),
        Misconception(w.AFTER[0], mistakes.with_parts(weights=w.scaled_after), w.AFTER[1]),
        Misconception(w.OVERFLOW[0], mistakes.with_parts(weights=w.overflowing), w.OVERFLOW[1]),
        Misconception(w.ONE_MAXIMUM[0], mistakes.with_parts(weights=w.one_maximum), w.ONE_MAXIMUM[1]),
        Misconception(w.NO_SOFTMAX[0], mistakes.with_parts(weights=w.scaled), w.NO_SOFTMAX[1]),
        Misconception(
            "there was one wide head instead of several",
            mistakes.one_wide_head,
            "num_heads had no effect. With one head, every channel of a token follows the same "
            "weights; the point of several is that each looks elsewhere.",
        ),
        Misconception(
            "the values were projected with w_k",
            mistakes.with_matrices(lambda q, k, v, o: (q, k, k, o)),
            "w_v was never used, so what is mixed are the keys.",
        ),
        Misconception(
            "w_k and w_v changed places",
            mistakes.with_matrices(lambda q, k, v, o: (q, v, k, o)),
            "The queries were compared with the values, and the keys were mixed.",
        ),
        Misconception(
            "w_q and w_k changed places",
            mistakes.with_matrices(lambda q, k, v, o: (k, q, v, o)),
            "Each row of the weights belongs to a query. Here each key was compared with all queries, so "
            "that rows and columns are exchanged.",
        ),
        Misconception(
            "the keys were projected with w_q",
            mistakes.with_matrices(lambda q, k, v, o: (q, q, v, o)),
            "w_k was never used: queries were compared with queries.",
        ),
        Misconception(
            "the queries were projected with w_k",
            mistakes.with_matrices(lambda q, k, v, o: (k, k, v, o)),
            "w_q was never used: keys were compared with keys.",
        ),
        Misconception(
            "x was added to the result",
            mistakes.x_added,
            "A transformer block adds its input to what attention gives, but outside of attention. "
            "Here only what attention gives is wanted.",
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
