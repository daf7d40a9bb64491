"""Lesson 07: what the window's check once let pass."""

import numpy
import pytest
import torch
from course_answers import course_answers

from kvlearn.attention import attention, causal_mask
from kvlearn.checks import REGISTRY, judge
from kvlearn.checks.lesson_07.cache import _Window


@pytest.mark.slow
def test_a_step_that_is_taken_back_and_not_forgotten_has_its_name():
    """Would catch a `_truncate` that does nothing: right numbers, and memory that is not given back."""

    class Keeps(course_answers()["sliding_window_cache"].run()):
        def _truncate(self, layer, length):
            pass

    for seed in range(3):
        result = judge(REGISTRY["sliding_window_cache"], Keeps, seed)
        assert result.misconception == "what a dropped step had put aside is kept", result.message


def in_chunks(attend, q, k, v, window, chunk, width=None):
    outputs = []
    for start in range(0, q.shape[2], width or chunk):
        end, first = min(start + (width or chunk), q.shape[2]), max(0, start - window + 1)
        mask = causal_mask(end - start, end - first, window)
        outputs.append(attend(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end], mask))
    return torch.cat(outputs, dim=2)


def test_results_of_attend_that_are_thrown_away_are_seen():
    """Would catch an answer that makes the calls for show: lessons 04 and 07 ask for them alike."""

    def for_show(attend, q, k, v, window, chunk):
        in_chunks(attend, q, k, v, window, chunk)
        return attention(q, k, v, causal_mask(q.shape[2], window=window))

    def for_show_without_window(attend, q, k, v, chunk):
        return for_show(attend, q, k, v, q.shape[2], chunk)

    for name, answer in (("windowed_prefill", for_show), ("chunked_prefill", for_show_without_window)):
        assert "its results were thrown away" in judge(REGISTRY[name], answer).message


def test_the_sentences_about_the_calls_appear():
    """Would catch observations that are lists and a True, which the exercise's own sentences never reach."""
    name = "windowed_prefill"
    assert judge(REGISTRY[name], in_chunks).passed
    by_two = judge(REGISTRY[name], lambda *a: in_chunks(*a, width=2)).message
    assert "attend got 2, 2, 2, 2, 2, 2, 1 queries in its calls" in by_two
    assert "13 tokens in chunks of 3 make 3, 3, 3, 3, 1." in by_two

    def one_call_too_wide(attend, q, k, v, window, chunk):
        def keeps_all(q_, k_, v_, mask):
            end = next(i for i in range(k.shape[2], 0, -1) if torch.equal(k[:, :, i - 1], k_[:, :, -1]))
            return attend(q_, k[:, :, :end], v[:, :, :end], causal_mask(q_.shape[2], end, window))

        return in_chunks(keeps_all if window == 5 else attend, q, k, v, window, chunk)

    wide = judge(REGISTRY[name], one_call_too_wide).message
    assert "Looks like: nothing is dropped, and the mask does the rest." in wide


def test_a_window_of_one_keeps_nothing_and_not_everything():
    """Would catch keys[-(window - 1):], which is keys[0:] where the window is 1."""

    def answer(attend, q, k, v, window, chunk):
        kept, outputs = torch.arange(0), []
        for queries in torch.arange(q.shape[2]).split(chunk):
            keys = torch.cat((kept, queries))
            mask = causal_mask(len(queries), len(keys), window)
            outputs.append(attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask))
            kept = keys[-(window - 1) :]
        return torch.cat(outputs, dim=2)

    assert "One call of attend got 9 keys." in judge(REGISTRY["windowed_prefill"], answer).message


def written(ring, new, positions, takes):
    ring = ring.clone()
    for row, line in enumerate(positions.tolist()):
        for place in takes(line, ring.shape[2]):
            if line[place] >= 0:
                ring[row, :, line[place] % ring.shape[2]] = new[row, :, place]
    return ring


@pytest.mark.parametrize(
    "takes",
    [
        lambda line, window: range(len(line))[-window:],
        lambda line, window: range(next((i for i, p in enumerate(line) if p < 0), len(line))),
    ],
)
def test_padding_may_stand_anywhere(takes):
    """Would catch the last W columns taken for the last W tokens, and a loop that ends at padding."""
    assert judge(REGISTRY["ring_write"], lambda *a: written(*a, lambda line, w: range(len(line)))).passed
    for seed in range(3):
        assert not judge(REGISTRY["ring_write"], lambda *a: written(*a, takes), seed).passed


def test_a_row_counts_on_from_its_positions_and_not_from_the_first_of_them():
    """Would catch a row whose positions are taken to follow one another without a gap."""

    def consecutive(ring, new, positions):
        ring = ring.clone()
        for row, line in enumerate(positions.tolist()):
            real = [place for place, p in enumerate(line) if p >= 0]
            for number, place in enumerate(real):
                ring[row, :, (line[real[0]] + number) % ring.shape[2]] = new[row, :, place]
        return ring

    assert not judge(REGISTRY["ring_write"], consecutive).passed


def test_numbers_of_numpy_are_numbers():
    """Would catch a right answer refused because it came from numpy."""
    reference = REGISTRY["ring_positions"].reference
    assert judge(REGISTRY["ring_positions"], lambda *a: numpy.array(reference(*a))).passed
    may = REGISTRY["may_roll_back"].reference
    assert judge(REGISTRY["may_roll_back"], lambda *a: numpy.bool_(may(*a))).passed


class RefusesToForgetAll(_Window):
    def truncate(self, length):
        if length == 0:
            raise ValueError("nothing would be left")
        super().truncate(length)


class SaysNoWindow(_Window):
    def __init__(self, config, window, batch_size=1, dtype=None, device=None):
        super().__init__(config, window, batch_size, dtype, device)
        self.width, self.window = window, None

    def _trim(self, tokens):
        return {position: tokens[position] for position in sorted(tokens)[-self.width :]}

    def _refuse_what_is_gone(self, left):
        self.window = self.width
        super()._refuse_what_is_gone(left)
        self.window = None


class ResetKeepsTheRing(_Window):
    def reset(self):
        kept = self.kept
        super().reset()
        self.kept = kept


@pytest.mark.slow
@pytest.mark.parametrize("answer", [RefusesToForgetAll, SaysNoWindow, ResetKeepsTheRing])
def test_what_a_window_cache_says_and_forgets(answer):
    """Would catch a refusal to forget everything, a window that the mask never hears of, a reset by half."""
    assert not judge(REGISTRY["sliding_window_cache"], answer).passed
