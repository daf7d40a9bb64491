"""Answers to lesson 02 that are nearly right, or right in an unusual way, and what they are told."""

import copy

import numpy
import pytest
import torch
from course_answers import course_answers
from seeds import at_seeds

from kvlearn.checks import REGISTRY, judge
from kvlearn.checks.isolate import undisturbed
from kvlearn.checks.lesson_02.decoders import differences, draw_cases


def cases_of(name, seed):
    with undisturbed(seed):
        return REGISTRY[name].cases(torch.Generator().manual_seed(seed))


# Attention under a mask -----------------------------------------------------------------------------


def masked(weights):
    """The answer whose weights are weights(scores, mask)."""

    def answer(q, k, v, mask):
        return weights(q @ k.mT / q.shape[-1] ** 0.5, mask) @ v

    return answer


def divided_after(scores, mask, floor=1e-12):
    kept = scores.softmax(-1) * mask
    return kept / kept.sum(-1, keepdim=True).clamp(min=floor)


def powers_without_the_maximum(scores, mask):
    powers = scores.exp() * mask
    return (powers / powers.sum(-1, keepdim=True)).nan_to_num()


@at_seeds(20)
def test_the_large_scores_are_exact_and_the_largest_is_forbidden(seed):
    """Scores of 45,000 that float32 rounds would make right answers fail, at some seeds only."""
    case = next(c for c in cases_of("masked_attention", seed) if c.label.startswith("large scores"))
    q, k, mask = case["q"], case["k"], case["mask"]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    assert torch.equal(scores.double(), q.double() @ k.double().mT / 4)
    assert not mask[..., -1].any()
    allowed = torch.where(mask, scores, -torch.inf)
    seen = mask.any(-1).expand(allowed.shape[:-1])
    assert (scores[..., -1] - allowed.amax(-1) > 1000)[seen].all()  # e^-1000 is 0 even in float64
    assert (allowed.amax(-1)[:, 0] < -10_000)[seen[:, 0]].all()


@at_seeds(20)
@pytest.mark.parametrize(
    "weights", [divided_after, powers_without_the_maximum], ids=["divided after", "no maximum"]
)
def test_masking_too_late_never_passes(weights, seed):
    """A case whose forbidden scores are the largest at some seeds only lets a mask after the softmax pass."""
    assert not judge(REGISTRY["masked_attention"], masked(weights), seed).passed


@pytest.mark.parametrize(
    "weights, misconception",
    [
        (
            lambda scores, mask: (scores + (1.0 - mask.float()) * -1e9).softmax(-1),
            "a large negative number was added, and a query that may see nothing sees everything",
        ),
        (
            lambda scores, mask: (scores - 1e9 * (~mask)).softmax(-1),
            "a large negative number was added, and a query that may see nothing sees everything",
        ),
        (
            lambda scores, mask: (scores + (1 - mask.int()) * float("-inf")).softmax(-1),
            "minus infinity was multiplied by the mask",
        ),
        (
            lambda scores, mask: scores.masked_fill(~mask, -100).softmax(-1) * mask,
            "the number for forbidden scores is not low enough",
        ),
        (
            lambda scores, mask: scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1),
            "a query that may see nothing takes the average of everything",
        ),
        (divided_after, "struck out after the softmax, divided by what was left, and NaN replaced"),
    ],
    ids=["1 - mask", "minus", "times inf", "-100", "finfo.min", "clamp"],
)
def test_a_mistake_of_the_mask_in_other_words_has_its_name(weights, misconception):
    """The name must not hang on how an answer is written."""
    for seed in range(3):
        assert judge(REGISTRY["masked_attention"], masked(weights), seed).misconception == misconception


@pytest.mark.parametrize(
    "weights",
    [
        lambda scores, mask: (scores + mask.to(scores.dtype).log()).softmax(-1).nan_to_num(),
        lambda scores, mask: scores.masked_fill(~mask, -1e9).softmax(-1) * mask,
        lambda scores, mask: (scores + (1 - mask.to(scores.dtype)) * -1e9).softmax(-1) * mask,
    ],
    ids=["log", "-1e9 and struck out", "added and struck out"],
)
def test_a_large_negative_number_and_zeros_for_the_empty_rows_pass(weights):
    """Scores so large that -1e9 would not do any more would refuse what works everywhere."""
    for seed in range(5):
        result = judge(REGISTRY["masked_attention"], masked(weights), seed)
        assert result.passed, result.message


# What used to slip past -----------------------------------------------------------------------------


def triangle(L, S):
    return torch.ones(L, S, dtype=torch.bool).tril(S - L)


def by_position(query_positions, key_positions):
    query, key = query_positions[:, None, :, None], key_positions[:, None, None, :]
    return (key >= 0) & (key <= query)


def as_whole_numbers(dtype):
    return lambda query_positions, key_positions: by_position(
        query_positions.to(dtype), key_positions.to(dtype)
    )


def remembered(function, key):
    """function(*inputs), kept for every key(*inputs)."""
    kept = {}

    def answer(*inputs):
        if key(*inputs) not in kept:
            kept[key(*inputs)] = function(*inputs)
        return kept[key(*inputs)]

    return answer


def by_powers(mend):
    """e to the scores, struck out and shared by hand: mend(powers, their sum)."""

    def weights(scores, mask):
        powers = scores.masked_fill(~mask, -torch.inf).exp()
        return mend(powers, powers.sum(-1, keepdim=True))

    return masked(weights)


def softmax(scores, mask):
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()


WRONG = {
    "causal_mask": [
        (lambda: lambda L, S: torch.ones(64, 64, dtype=torch.bool).tril()[S - L : S, :S], "(2, 2102)"),
        (lambda: lambda L, S: torch.ones(2048, 2048, dtype=torch.bool).tril()[S - L : S, :S], "(2, 2102)"),
        (
            lambda: lambda L, S: torch.arange(S).half() <= torch.arange(S - L, S).half()[:, None],
            "With 2 queries and 2102 keys, query 0 should see keys 0 to 2100 and sees keys 0 to 2101",
        ),
        (lambda: remembered(triangle, lambda L, S: L), "has shape (2, 5); expected (2, 4)"),
        (lambda: remembered(triangle, lambda L, S: S), "has shape (4, 4); expected (2, 4)"),
        (lambda: lambda L, S: triangle(L, S).squeeze(), "has shape (8,); expected (1, 8)"),
    ],
    "position_mask": [
        (
            lambda: lambda q, k: (k >= 0)[:, None, None] if q.shape[1] == 1 else by_position(q, k),
            "a single query sees everything that is stored",
        ),
        (
            lambda: lambda q, k: (k >= 0)[:, None, None] & triangle(*k.shape[1:] * 2)
            if q.shape == k.shape
            else by_position(q, k),
            "In row 0 the keys are at positions [6, -1, 4, 5].",
        ),
        (lambda: as_whole_numbers(torch.int8), "[4998, 4999, 5000, 5001, 5002]"),
        (lambda: as_whole_numbers(torch.int16), "[0, 39998, -1, 39999, 40000]"),
        (lambda: as_whole_numbers(torch.half), "[4998, 4999, 5000, 5001, 5002]"),
        (lambda: lambda q, k: by_position(q, k.masked_fill(k < 0, 9999)), "[0, 39998, -1, 39999, 40000]"),
        (lambda: remembered(by_position, lambda q, k: (q.shape, k.shape)), "There query 0 (position 4999)"),
        (lambda: lambda q, k: by_position(q, k).squeeze(0), "has shape (1, 2, 4); expected (1, 1, 2, 4)"),
    ],
    "masked_attention": [
        (lambda: by_powers(lambda e, total: (e / total).nan_to_num()), "overflowed, and NaN was replaced"),
        (lambda: by_powers(lambda e, total: e / total.clamp(min=1e-30)), "exp of a large score overflowed"),
        (lambda: by_powers(lambda e, total: e / (total + 1e-9)), "exp of a large score overflowed"),
        (lambda: by_powers(lambda e, total: e / total), "a query that may see nothing gives NaN"),
        (
            lambda: masked(lambda s, m: softmax(s, m & (s != 0))),
            "a score of zero was taken for forbidden",
        ),
        (
            lambda: lambda q, k, v, mask: masked(softmax)(
                q, k, v, triangle(4, 4) if q.shape[2] == k.shape[2] else mask
            ),
            "a triangle took the mask's place where there are as many keys as queries",
        ),
        (
            lambda: masked(lambda s, m: softmax(s, m & triangle(*m.shape[-2:]))),
            "a triangle of its own was added to the mask",
        ),
        (
            lambda: masked(lambda s, m: (s + m.log()).softmax(-1).nan_to_num()),
            "RuntimeError: expected scalar type Float but found BFloat16",
        ),
        (
            lambda: lambda q, k, v, mask: softmax(q @ k.mT / q.shape[-1] ** 0.5 + torch.zeros(1), mask)
            @ v.to(torch.promote_types(v.dtype, torch.float32)),
            "has dtype float32; expected bfloat16, as q has",
        ),
        (
            lambda: lambda q, k, v, mask, kept={}: masked(softmax)(
                q, k, v, kept.setdefault(mask.shape, mask)
            ),
            "bfloat16",
        ),
    ],
}  # fmt: skip
ROWS = [(name, make, words) for name, rows in WRONG.items() for make, words in rows]


@pytest.mark.parametrize("name, make, words", ROWS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(ROWS)])
def test_what_used_to_slip_past_is_named(name, make, words):
    """Would catch checks without far positions, as many keys as queries, shapes seen before, or bfloat16."""
    result = judge(REGISTRY[name], make())
    assert not result.passed and words in result.message, result.message


def test_a_row_that_nearly_fits_shows_digits_that_differ():
    """Would catch "should be 1.764; it is 1.764"."""
    case = cases_of("masked_attention", 0)[0]
    want = torch.full((2, 3, 4, 6), 1.764)
    said = REGISTRY["masked_attention"].explain(case, want + 3e-4, want)
    assert "should be 1.764; it is 1.7643." in said


def test_the_examples_by_hand_are_cases():
    """Would catch a check that leaves out the tables that the assignment prints."""
    wanted = {
        "causal_mask": [1, 1, 1, 0, 1, 1, 1, 1],
        "position_mask": [0, 1, 0, 1, 1, 1, 0, 1],
        "masked_attention": [15, 7.5, 6, 0],
    }
    for name, want in wanted.items():
        case = next(c for c in cases_of(name, 3) if c.label == "the example by hand")
        result = REGISTRY[name].reference(*case.inputs.values()).flatten().float()
        assert torch.allclose(result, torch.tensor(want).float())


# The proof by experiment ----------------------------------------------------------------------------


def comparing(same):
    """The answer that compares one K or V (B, Hkv, L, D) of the two runs by same(before, after)."""
    look = course_answers()["changed_layers"].namespace["keys_and_values"]

    def answer(decoder, tokens, new_token):
        runs = zip(look(decoder, tokens), look(decoder, torch.cat((tokens, new_token), 1)), strict=True)
        old = tokens.shape[1]
        return [
            layer
            for layer, (before, after) in enumerate(runs)
            if not all(same(a, b[:, :, :old]) for a, b in zip(before, after, strict=True))
        ]

    return answer


def close_to(tolerance):
    return lambda a, b: torch.allclose(a, b, rtol=0, atol=tolerance)


@at_seeds(20)
def test_a_change_is_far_from_rounding_and_from_a_wide_tolerance(seed):
    """A leak that a sensible tolerance hides, or that a wide one sees; rounding that counts as a change."""
    with undisturbed(seed):
        for case in draw_cases(torch.Generator().manual_seed(seed)):
            sizes = [max(layer) for layer in differences(*case.inputs.values())]
            if case.label == "a leak of 1e-7":
                assert sizes[0] < 1e-14 and all(9e-8 < size < 1.1e-7 for size in sizes[1:])
            elif case.label == "causal with rounding":
                assert 1e-12 < sizes[1] < 1e-10
            else:
                assert all(size < 1e-14 or size > 0.1 for size in sizes)


@pytest.mark.slow  # runs decoders
@pytest.mark.parametrize(
    "same, misconception",
    [
        (close_to(1e-3), "small changes were taken for none"),
        (close_to(1e-6), "small changes were taken for none"),
        (torch.allclose, "small changes were taken for none"),
        (lambda a, b: (a - b).max() < 1e-9, "the sign of a difference was kept"),
        (lambda a, b: close_to(1e-9)(a[0], b[0]), "only one row of the batch was compared"),
        (lambda a, b: close_to(1e-9)(a[-1], b[-1]), "only one row of the batch was compared"),
        (lambda a, b: close_to(1e-9)(a[:, 0], b[:, 0]), "only the first head was compared"),
        (
            lambda a, b: close_to(1e-9)(a.sum(1), b.sum(1)),
            "the heads were averaged before they were compared",
        ),
    ],
    ids=["1e-3", "1e-6", "allclose", "no sign", "row 0", "last row", "head 0", "sum of heads"],
)
def test_an_experiment_that_looks_at_a_part_or_too_coarsely_has_its_name(same, misconception):
    """Two rows and one head let an answer pass that compares one row, one head, a mean, or roughly."""
    assert judge(REGISTRY["changed_layers"], comparing(same)).misconception == misconception


@pytest.mark.slow
@pytest.mark.parametrize(
    "same",
    [
        lambda a, b: torch.allclose(a[:, -1], b[:, -1]),
        lambda a, b: torch.allclose(a.mean(), b.mean()),
        close_to(1e-12),
    ],
    ids=["last head", "one mean", "1e-12"],
)
def test_other_experiments_on_a_part_or_too_fine_fail(same):
    """What the bank has no name for must not pass either."""
    assert not judge(REGISTRY["changed_layers"], comparing(same)).passed


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-8, 1e-9])
def test_sensible_tolerances_pass(tolerance):
    """A leak as small as rounding would make the check a question of luck."""
    result = judge(REGISTRY["changed_layers"], comparing(close_to(tolerance)))
    assert result.passed, result.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        lambda layers: [numpy.int64(i) for i in layers],
        lambda layers: tuple(numpy.flatnonzero(numpy.isin(numpy.arange(9), layers))),
        lambda layers: {torch.tensor(i) for i in layers},
    ],
    ids=["numpy", "flatnonzero", "tensors"],
)
def test_whole_numbers_of_any_kind_are_layer_numbers(given):
    """A layer number that is no Python int was refused, or was not found in a set of tensors."""
    right = course_answers()["changed_layers"].run()
    result = judge(REGISTRY["changed_layers"], lambda *inputs: given(right(*inputs)))
    assert result.passed, result.message


@pytest.mark.slow
@pytest.mark.parametrize("given", [[True], [1.0], ["1"], numpy.array([1]), torch.tensor([1]), 1], ids=repr)
def test_what_is_no_list_of_layer_numbers_gets_a_sentence(given):
    """`True in [1]` is true in Python."""
    result = judge(REGISTRY["changed_layers"], lambda decoder, tokens, new_token: given)
    assert "A list of layer numbers is wanted" in result.message


def look(decoder, tokens):
    return course_answers()["changed_layers"].namespace["keys_and_values"](decoder, tokens)


def right(*inputs):
    return comparing(close_to(1e-9))(*inputs)


def forgets_its_hooks(decoder, tokens, new_token):
    decoder.layers[0].register_forward_hook(lambda *_: None)
    return right(decoder, tokens, new_token)


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer, words",
    [
        (
            lambda d, t, n: list(range(*(right(d, t, n)[:1] or [9]), len(d.layers))),
            "every layer above the first changed one was reported",
        ),
        (lambda d, t, n: right(d, t, n)[:1], "only the first changed layer was reported"),
        (lambda d, t, n: right(d, t[:, :-1], t[:, -1:]), "new_token was not used"),
        (
            lambda d, t, n: right(d, t, torch.zeros_like(n)),
            "a text of one token”: you say that layer 2 did not",
        ),
        (lambda d, t, n: right(d, torch.arange(t.shape[1]).expand_as(t), n), "one token repeated”: you say"),
        (
            lambda d, t, n: [
                i
                for i, (a, b) in enumerate(zip(look(d, t), look(d, torch.cat((n, t), 1)), strict=True))
                if not all(close_to(1e-9)(x, y[:, :, 1:]) for x, y in zip(a, b, strict=True))
            ],
            "the new token was put in front of the text",
        ),
        (forgets_its_hooks, "still has your hooks"),
    ],
    ids=["from the first on", "the first", "no new token", "its own", "own text", "in front", "hooks"],
)
def test_an_experiment_that_leaves_something_out_is_told(answer, words):
    """Would catch decoders whose layers all change above the first, and results that no token decides."""
    result = judge(REGISTRY["changed_layers"], answer)
    assert not result.passed and words in result.message, result.message


def test_a_quick_copy_is_a_copy():
    """Would catch an answer that changes the decoder of the next: a weight or a hook that is shared."""
    decoder = cases_of("changed_layers", 0)[2]["decoder"]
    other = copy.deepcopy(decoder)
    assert type(other).__name__ == "Decoder"  # as a message calls it
    assert other.state_dict().keys() == decoder.state_dict().keys()
    for one, two in zip(decoder.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two) and one.data_ptr() != two.data_ptr()
    for module in other.modules():
        module.register_forward_hook(lambda *_: None)
        module.register_forward_pre_hook(lambda *_: None)
    other.attention, other.layers[0].mlp = None, None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in decoder.modules())
    assert decoder.attention and decoder.layers[0].mlp


@pytest.mark.slow
def test_rows_may_run_one_by_one():
    """Would catch a decoder that needs the whole batch: it refused right answers that loop over the rows."""

    def answer(decoder, tokens, new_token):
        rows = zip(tokens.split(1), new_token.split(1), strict=True)
        return sorted({layer for row in rows for layer in right(decoder, *row)})

    result = judge(REGISTRY["changed_layers"], answer)
    assert result.passed, result.message
