"""masked_attention: attention that keeps to a mask, empty rows included.

The oracle takes one query at a time and gives it only the keys that it may see, so that it needs no
-inf and no NaN (pytorch/pytorch#103749) can come about. But for the example by hand no row of a case sees
every key: then an answer that has the mask the wrong way round gives numbers in every row.
"""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.explain import apart
from kvlearn.checks.lesson_02 import attention_mistakes as mistakes
from kvlearn.checks.masks import keys_in_words


def _attention(q, k, v, mask):
    """Oracle: a softmax over the keys that are allowed, and over no others."""
    B, H, L, D = q.shape
    out = torch.zeros(B, H, L, v.shape[-1], dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for query in range(L):
                seen = mask[b, 0, query].nonzero().flatten()
                if len(seen):
                    scores = k[b, h, seen].double() @ q[b, h, query].double() / D**0.5
                    out[b, h, query] = scores.softmax(0) @ v[b, h, seen].double()
    return out.to(q.dtype)


def _cases(generator):
    padded = torch.tensor([[-1, -1, 0, 1, 2], [-1, 0, 1, 2, 3]])
    one = torch.tensor([[0, 1, -1, 2, 3, 4, -1], [4, 2, 0, -1, 1, 3, 5], [-1] * 7])
    chunk = torch.tensor([[0, 1, 2, 3, 4], [-1, 0, 1, 2, 3]])
    square = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]]).bool()[None, None]
    draws = [
        # q and k are (B, H, L, D) and (B, H, S, D)
        ((2, 3, 4, 5, 6), torch.float32, _seen(padded[:, 1:], padded), "left padding"),
        ((3, 2, 1, 7, 4), torch.float32, _seen(one.amax(1, keepdim=True), one), "one query"),
        ((1, 2, 3, 6, 5), torch.float64, _any_mask(generator, 3, 6, empty=True), "any mask in float64"),
        ((2, 3, 4, 5, 6), torch.bfloat16, _seen(chunk[:, :4], chunk), "bfloat16"),
        ((2, 3, 4, 4, 6), torch.float32, square.expand(2, -1, -1, -1), "as many queries as keys"),
    ]
    cases = []
    for (B, H, L, S, D), dtype, mask, label in draws:
        size = 0.5 if dtype is torch.bfloat16 else 1.0
        q = randn(generator, B, H, L, D, dtype=dtype, size=size)
        k, v = (randn(generator, B, H, S, D, dtype=dtype, size=size) for _ in range(2))
        equal = "query key" if L == S else ""
        cases.append(Case({"q": q, "k": k, "v": v, "mask": mask}, label, equal))
    return [*cases, _scores_near_200(generator), _large_scores(generator), _by_hand()]


def _large_scores(generator):
    """Scores near -45,000 in head 0, near 15,000 in the others, of 45,000 for the key that nobody may see.

    With whole numbers and D = 16 they are exact in float32, in whatever order they are scaled and added:
    rounding in a score of that size would be a large error in its power of e.
    """
    q, k = (randn(generator, 1, 3, length, 16, size=60.0).round() for length in (4, 5))
    q[..., 0], k[..., 0] = 60, 1000
    k[:, 0, :, 0] = -3000
    k[:, :, -1] = 0
    k[:, :, -1, 0] = 3000
    inputs = {"q": q, "k": k, "v": randn(generator, 1, 3, 5, 16), "mask": _any_mask(generator, 4, 5)}
    return Case(inputs, "large scores and the largest forbidden")


def _scores_near_200(generator):
    """Scores near 200, of which e is inf in float32.

    Forbidden and allowed ones are near each other, so that it is not too late to mask after the softmax.
    """
    q, k = (randn(generator, 1, 2, length, 16).round() for length in (3, 7))
    q[..., 0], k[..., 0] = 40, 20
    inputs = {"q": q, "k": k, "v": randn(generator, 1, 2, 7, 16), "mask": _any_mask(generator, 3, 7)}
    return Case(inputs, "scores near 200")


def _by_hand():
    """The assignment's three keys with equal scores, for one query in each line of its table."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()[None, None]
    v = torch.tensor([6.0, 9, 30]).view(1, 1, 3, 1)
    inputs = {"q": torch.zeros(1, 1, 4, 1), "k": torch.ones_like(v), "v": v, "mask": mask}
    return Case(inputs, "the example by hand")


def _seen(query_positions, key_positions):
    query, key = query_positions[:, None, :, None], key_positions[:, None, None, :]
    return (key >= 0) & (key <= query)


def _any_mask(generator, L, S, empty=False):
    """(1, 1, L, S): each query sees some keys and never all; or the first sees nothing, if `empty`."""
    mask = torch.rand(L, S, generator=generator) < 0.6
    mask[:, 0], mask[:, -1] = True, False
    mask[:1] &= not empty
    return mask[None, None]


def _explain(case, got, want):
    bad = ~torch.isclose(got, want, rtol=1e-4, atol=1e-5)
    if not bad.any():
        return None
    b, h, query, channel = bad.nonzero()[0].tolist()
    seen = keys_in_words(case["mask"][b, 0, query])
    wanted, given = apart(want[b, h, query, channel].item(), got[b, h, query, channel].item())
    return (
        f"In batch {b}, head {h}, query {query} may see {seen}. Channel {channel} of its result should be "
        f"{wanted}; it is {given}."
    )


MASKED_ATTENTION = Exercise(
    name="masked_attention",
    lesson=2,
    title="Attention under a mask",
    minutes=15,
    difficulty=2,
    why="The softmax shares out a whole 1 among whatever it is shown. The mask has to decide what that is, "
    "also for a query that is shown nothing.",
    signature="masked_attention(q, k, v, mask)",
    reference=_attention,
    cases=_cases,
    explain=_explain,
    axes={
        "q": "batch head query channel",
        "k": "batch head key channel",
        "v": "batch head key channel",
        "mask": "batch all-heads query key",
        "return": "batch head query channel",
    },
    misconceptions=(
        Misconception(
            "a query that may see nothing gives NaN",
            mistakes.nan_rows,
            "The softmax of nothing but minus infinities is zero divided by zero, "
            "and one NaN spreads to everybody in the next layer, for zero times NaN is NaN.",
        ),
        Misconception(
            "a large negative number was added, and a query that may see nothing sees everything",
            mistakes.large_negative_added,
            "Where every score is lowered by the same amount the softmax does not notice: "
            "a row that may see nothing shares itself out as if nothing were forbidden.",
        ),
        Misconception(
            "a query that may see nothing takes the average of everything",
            mistakes.large_negative,
            "A large negative number is a score like any other: in a row that has "
            "no other scores it wins, everywhere alike.",
        ),
        Misconception(
            "the number for forbidden scores is not low enough",
            mistakes.not_low_enough,
            "An allowed score may be lower than that number, and then the forbidden keys win and the allowed "
            "ones are left with nothing. Is there a number below every score?",
        ),
        Misconception(
            "minus infinity was multiplied by the mask",
            mistakes.zero_times_infinity,
            "Everything is NaN, also in rows that may see something. Where nothing is forbidden this is zero "
            "times infinity, and that is not zero.",
        ),
        Misconception(
            "forbidden weights were struck out after the softmax",
            mistakes.struck_after,
            "The shares of a row no longer add up to 1, and what is left was divided by a sum that "
            "has seen the forbidden keys.",
        ),
        Misconception(
            "struck out after the softmax, then divided by what was left",
            mistakes.divided_after,
            "In a row that sees nothing this is zero divided by zero. It is also too late elsewhere: where "
            "a forbidden score is far larger, the softmax has already rounded all allowed weights to zero.",
        ),
        Misconception(
            "struck out after the softmax, divided by what was left, and NaN replaced",
            mistakes.divided_after_and_mended,
            "It is too late to mask: where a forbidden score is far larger, the softmax has already "
            "rounded all allowed weights to zero, and a query that may see something sees nothing.",
        ),
        Misconception(
            "exp of a large score overflowed",
            mistakes.overflowing,
            "The formula is right on paper. But exp of a large score is inf, and inf / inf is NaN; exp of a "
            "very low one is 0, and such a row ends up empty. A softmax does not change if all scores of a "
            "row are moved by the same amount.",
        ),
        Misconception(
            "exp of a large score overflowed, and NaN was replaced",
            mistakes.overflowing_and_mended,
            "The formula is right on paper. But exp of a large score is inf, and inf / inf is NaN: replacing "
            "NaN by zero then empties rows that may see something. A softmax does not change if all scores "
            "of a row are moved by the same amount.",
        ),
        Misconception(
            "a score of zero was taken for forbidden",
            mistakes.zero_means_forbidden,
            "A query and a key may be orthogonal, and then their score is 0 without any mask. Only the mask "
            "says what is forbidden.",
        ),
        Misconception(
            "forbidden scores were set to zero",
            mistakes.zeroed_scores,
            "Zero is a score like any other, and not a bad one: e to the 0 is 1. Forbidden keys still get "
            "their share.",
        ),
        Misconception(
            "the mask was read the wrong way round",
            mistakes.wrong_way_round,
            "True means: may attend. Here it is what was thrown away.",
        ),
        Misconception(
            "a large number was added where nothing may be seen",
            mistakes.wrong_sign,
            "The sign is wrong: forbidden keys got the best scores of all.",
        ),
        Misconception(
            "the mask was added to the scores as a number",
            mistakes.added_as_a_number,
            "As a number True is 1. Allowed keys got a little more; forbidden ones were not forbidden.",
        ),
        Misconception(
            "the mask was not used",
            mistakes.not_used,
            "Every query sees every key here, padding and future included.",
        ),
        Misconception(
            "a triangle of its own was used in place of the mask",
            mistakes.own_triangle,
            "The mask knows more than the triangle: empty slots, and keys that do not lie in order. "
            "Attention should do what the mask says.",
        ),
        Misconception(
            "a triangle of its own was added to the mask",
            mistakes.triangle_too,
            "The mask already says all that is forbidden. It may allow what a triangle would hide: keys need "
            "not lie in order.",
        ),
        Misconception(
            "a triangle took the mask's place where there are as many keys as queries",
            mistakes.triangle_if_square,
            "As many keys as queries do not make a text that is read from its beginning: the mask may have "
            "padding, or allow more than a triangle does.",
        ),
        Misconception(
            "the scores were not scaled",
            mistakes.unscaled,
            "The mask is right. A dot product of D random products spreads like the square root of D; "
            "without the scale the softmax decides too soon.",
        ),
        Misconception(
            "the softmax runs over the queries",
            mistakes.over_queries,
            "Each query shares out a 1 among its keys. Here each key was shared out among the queries.",
        ),
    ),
    hints=(
        "Start from attention without a mask: scores, softmax, values. The mask acts at one of the two "
        "places between them, and you know which.",
        "What score does a key need so that e to that score is zero exactly? `masked_fill` writes it; mind "
        "where it writes: at True.",
        "A row of nothing but such scores has no softmax. Which numbers should its weights be, and "
        "how do you put them there without touching any other row?",
    ),
)
