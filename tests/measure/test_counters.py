"""Counters: what they count equals the formulas, and they leave the decoder as it was."""

import pytest
import torch
from small import CONFIG, PROMPT, small_decoder

from kvlearn.cache import GrowingCache, StaticCache
from kvlearn.generation import generate
from kvlearn.measure import (
    cached_pairs,
    cached_projections,
    count_pairs,
    count_projections,
    naive_pairs,
    naive_projections,
    trace_cache,
)

CACHES = {
    "naive": lambda: None,
    "growing": lambda: GrowingCache(CONFIG),
    "static": lambda: StaticCache(CONFIG, max_length=40),
}
PARTS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "mlp"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", CACHES)
def test_projections_equal_the_formula(kind, part):
    """Would catch a hook on the wrong matrix, steps run together, and a cache that projects again."""
    decoder, new = small_decoder(), 4
    with count_projections(decoder, part) as count:
        generate(decoder, PROMPT, new, cache=CACHES[kind]())
    formula = naive_projections if kind == "naive" else cached_projections
    for layer in range(CONFIG.num_layers):
        assert count.positions(layer) == formula(len(PROMPT), new)
    assert count.total == CONFIG.num_layers * formula(len(PROMPT), new)
    assert count.per_step() == ([5, 6, 7, 8] if kind == "naive" else [5, 1, 1, 1])


@pytest.mark.parametrize("kind", CACHES)
def test_pairs_equal_the_formula(kind):
    """Would catch the naive pass taken for O(T) a step: it scores the whole triangle again (claims, ii)."""
    decoder, new = small_decoder(), 4
    with count_pairs(decoder) as count:
        generate(decoder, PROMPT, new, cache=CACHES[kind]())
    formula = naive_pairs if kind == "naive" else cached_pairs
    assert count.pairs(2) == formula(len(PROMPT), new) == sum(count.per_step(2))
    rectangle = sum(n * n for n in (5, 6, 7, 8)) if kind == "naive" else 5 * 5 + 6 + 7 + 8
    assert count.computed(1) == rectangle


def test_rows_of_a_batch_and_padding_are_counted():
    """Would catch a count of steps or of lengths: padding goes through the matrices, and scores nothing."""
    decoder = small_decoder()
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    with count_projections(decoder) as projections, count_pairs(decoder) as pairs:
        generate(decoder, prompts, 2, cache=GrowingCache(CONFIG, batch_size=2))
    assert projections.per_step() == [2 * 5, 2]
    assert pairs.per_step() == [15 + 3, 6 + 3]
    assert pairs.computed() == 2 * 5 * 5 + 2 * 6


def test_chunks_of_a_prefill_are_steps():
    """Would catch a chunk that is counted with the next one."""
    decoder = small_decoder()
    with count_projections(decoder, "v_proj") as count:
        generate(decoder, PROMPT, 1, cache=GrowingCache(CONFIG), prefill_chunk=3)
    assert sum(count.per_step()) == len(PROMPT) and len(count.per_step()) > 1


def test_trace_of_the_naive_decoder():
    """Would catch a trace that shows stored rows where nothing is stored: each step projects all."""
    decoder = small_decoder()
    with trace_cache(decoder) as trace:
        generate(decoder, PROMPT, 3)
    assert trace.steps == [{"projected": list(range(n)), "read": list(range(n))} for n in (5, 6, 7)]


@pytest.mark.parametrize("kind", ["growing", "static"])
def test_trace_of_a_cached_decoder(kind):
    """Would catch a cache whose step is said to read only the new token: it reads all that is stored."""
    decoder = small_decoder()
    with trace_cache(decoder, layer=1) as trace:
        generate(decoder, PROMPT, 3, cache=CACHES[kind]())
    assert trace.steps == [
        {"projected": [0, 1, 2, 3, 4], "read": [0, 1, 2, 3, 4]},
        {"projected": [5], "read": [0, 1, 2, 3, 4, 5]},
        {"projected": [6], "read": [0, 1, 2, 3, 4, 5, 6]},
    ]


def test_trace_of_a_padded_row():
    """Would catch padding (-1) shown as a position of the text, or row 0 shown for row 1."""
    decoder = small_decoder()
    with trace_cache(decoder, row=1) as trace:
        generate(decoder, [[3, 4, 5, 6], [8, 9]], 2, cache=GrowingCache(CONFIG, batch_size=2))
    assert trace.steps == [{"projected": [0, 1], "read": [0, 1]}, {"projected": [2], "read": [0, 1, 2]}]


def hooks(decoder):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in decoder.modules())


@pytest.mark.parametrize("counter", [count_projections, count_pairs, trace_cache])
def test_a_counter_changes_nothing_and_leaves_nothing_behind(counter):
    """Would catch a hook that stays, also after an error, and logits that are changed by counting."""
    decoder, tokens = small_decoder(), torch.tensor([PROMPT])
    before = decoder(tokens)
    with counter(decoder):
        assert torch.equal(decoder(tokens), before)
    assert hooks(decoder) == 0
    with pytest.raises(RuntimeError), counter(decoder):
        raise RuntimeError
    assert hooks(decoder) == 0


def test_the_learners_attention_is_counted_too():
    """Would catch a counter that works for the library's attention alone, or replaces the learner's by it."""
    calls = []

    class Mine(torch.nn.Module):
        def forward(self, q, k, v, mask=None):
            calls.append(mask.shape)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    decoder = small_decoder()
    decoder.attention = Mine()
    with count_pairs(decoder) as count:
        decoder(torch.tensor([PROMPT]))
    assert count.pairs() == 15 and len(calls) == CONFIG.num_layers


def test_an_unknown_part_is_refused():
    """Would catch a count of 0 for a matrix that does not exist."""
    with pytest.raises(ValueError, match="'k'; choose among"):
        count_projections(small_decoder(), "k")


def test_what_is_no_decoder_is_refused():
    """Would catch an AttributeError from inside the counter."""
    with pytest.raises(ValueError, match="Linear has no `layers`"):
        count_pairs(torch.nn.Linear(2, 3))
