"""Answers to lesson 02 that are nearly right, or right in an unusual way, and what they are told."""

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
    case = cases_of("masked_attention", seed)[-1]
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
        lambda scores, mask: (scores + mask.log()).softmax(-1).nan_to_num(),
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
            if case.label == "a little of the future":
                assert sizes[0] < 1e-14 and 1e-5 < sizes[1] < 1e-4
            elif case.label == "causal with rounding":
                assert 1e-12 < sizes[1] < 1e-10
            else:
                assert all(size < 1e-14 or size > 0.1 for size in sizes)


@pytest.mark.slow  # runs decoders
@pytest.mark.parametrize(
    "same, misconception",
    [
        (close_to(1e-3), "small changes were taken for none"),
        (close_to(1e-4), "small changes were taken for none"),
        (lambda a, b: torch.allclose(a[0], b[0]), "only one row of the batch was compared"),
        (lambda a, b: torch.allclose(a[-1], b[-1]), "only one row of the batch was compared"),
        (lambda a, b: torch.allclose(a[:, 0], b[:, 0]), "only the first head was compared"),
        (
            lambda a, b: torch.allclose(a.sum(1), b.sum(1)),
            "the heads were averaged before they were compared",
        ),
    ],
    ids=["1e-3", "1e-4", "row 0", "last row", "head 0", "sum of heads"],
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
@pytest.mark.parametrize("tolerance", [1e-6, 1e-9])
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
