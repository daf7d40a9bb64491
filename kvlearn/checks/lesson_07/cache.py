"""sliding_window_cache: the learner's own, on the base class that all caches share."""

import torch

from kvlearn.cache import KVCache, SlidingWindowCache
from kvlearn.checks.engine import Exercise, Misconception
from kvlearn.checks.lesson_07.scenario import cases, explain, play


def _observe(answer, case):
    k = case["k"]
    return play(
        lambda: answer(case["config"], case["window"], k.shape[1], dtype=k.dtype, device=k.device), case
    )


class _Window(KVCache):
    """A right cache in slow Python, whose parts the misconceptions replace.

    kept[layer][row] is a dict of position -> (k, v); arrived[layer] are the tokens of the step under way.
    """

    def __init__(self, config, window, batch_size=1, dtype=None, device=None):
        self.window = window
        super().__init__(config, batch_size, dtype=dtype, device=device)

    def _start(self, batch_size):
        self.kept = [[{} for _ in range(batch_size)] for _ in range(self.num_layers)]
        self.arrived = {}

    def _append(self, layer, k, v):
        self.arrived[layer] = [
            {p: (k[row, :, i].clone(), v[row, :, i].clone()) for i, p in enumerate(line) if p >= 0}
            for row, line in enumerate(self._step.tolist())
        ]
        past = self._stacked(layer)
        return tuple(torch.cat((old, new), dim=2) for old, new in zip(past, (k, v), strict=True))

    def _stacked(self, layer):
        rows = self.kept[layer]
        heads, dim = self.key_shape
        sides = torch.zeros(2, len(rows), heads, max(map(len, rows)), dim, dtype=self.dtype)
        for row, tokens in enumerate(rows):
            for slot, position in enumerate(sorted(tokens)):
                sides[0, row, :, slot], sides[1, row, :, slot] = tokens[position]
        return sides[0], sides[1]

    def _kept_positions(self, layer):
        longest = max(map(len, self.kept[layer]))
        return torch.tensor(
            [sorted(tokens) + [-1] * (longest - len(tokens)) for tokens in self.kept[layer]], dtype=torch.long
        )

    def _settle(self):
        for layer, rows in self.arrived.items():
            self.kept[layer] = [
                self._trim(old | new) for old, new in zip(self.kept[layer], rows, strict=True)
            ]
        self.arrived = {}

    def _trim(self, tokens):
        return {position: tokens[position] for position in sorted(tokens)[-self.window :]}

    def _truncate(self, layer, length):
        self.arrived.pop(layer, None)

    def truncate(self, length):
        left = (self.positions[:, :length].amax(dim=1) + 1).tolist() if length else [0] * self.batch_size
        self._refuse_what_is_gone(left)
        super().truncate(length)
        self._forget_from(left)

    def _refuse_what_is_gone(self, left):
        for row, following in enumerate(left):
            needed = range(max(0, following - self.window + 1), following)
            if not all(position in self.kept[0][row] for position in needed):
                raise ValueError("The next query would see a position that is gone.")

    def _forget_from(self, left):
        for rows in self.kept:
            for row, following in enumerate(left):
                rows[row] = {p: token for p, token in rows[row].items() if p < following}

    def _tensors(self):
        tokens = [token for rows in self.arrived.values() for row in rows for token in row.values()]
        kept = [side for layer in range(self.num_layers) for side in self._stacked(layer)]
        return kept + [side for token in tokens for side in token]


class _TrimsFirst(_Window):
    def _append(self, layer, k, v):
        newest = self._step.amax(dim=1).tolist()
        for row, tokens in enumerate(self.kept[layer]):
            self.kept[layer][row] = {p: t for p, t in tokens.items() if p > newest[row] - self.window}
        return super()._append(layer, k, v)


class _WritesAtOnce(_Window):
    """What shares a slot with a new token is overwritten while its position still stands."""

    def _append(self, layer, k, v):
        back = super()._append(layer, k, v)
        for tokens, new in zip(self.kept[layer], self.arrived[layer], strict=True):
            for position in sorted(new):
                if position - self.window in tokens:
                    tokens[position - self.window] = new[position]
        return back


class _NewestLost(_Window):
    def _trim(self, tokens):
        return {position: tokens[position] for position in sorted(tokens)[: self.window]}


class _OneFewer(_Window):
    def _trim(self, tokens):
        return {p: tokens[p] for p in sorted(tokens)[max(0, len(tokens) - self.window + 1) :]}


class _KeepsEverything(_Window):
    def _trim(self, tokens):
        return tokens


class _CountsSlots(_Window):
    def _settle(self):
        super()._settle()
        last = self.positions[:, -self.window :].tolist()
        for rows in self.kept:
            for row, tokens in enumerate(rows):
                rows[row] = {p: token for p, token in tokens.items() if p in last[row]}


class _NeverRefuses(_Window):
    def _refuse_what_is_gone(self, left):
        pass


class _Restarted(_Window):
    def _kept_positions(self, layer):
        positions = super()._kept_positions(layer)
        return torch.where(positions >= 0, torch.arange(positions.shape[1]), -1)


class _EmptyIsZero(_Window):
    def _kept_positions(self, layer):
        return super()._kept_positions(layer).clamp(min=0)


class _DroppedStepStays(_Window):
    def _append(self, layer, k, v):
        before = self.arrived.get(layer)
        back = super()._append(layer, k, v)
        if before:
            self.arrived[layer] = [old | new for old, new in zip(before, self.arrived[layer], strict=True)]
        return back

    def _truncate(self, layer, length):
        pass


class _KeepsWhatWasDropped(_Window):
    def _truncate(self, layer, length):
        pass


class _StaysInTheRing(_Window):
    def _forget_from(self, left):
        pass


class _OneForAllLayers(_Window):
    def _settle(self):
        super()._settle()
        self.kept = [[dict(tokens) for tokens in self.kept[-1]] for _ in range(self.num_layers)]


class _Swapped(_Window):
    def _append(self, layer, k, v):
        k, v = super()._append(layer, k, v)
        return v, k


SLIDING_WINDOW_CACHE = Exercise(
    name="sliding_window_cache",
    lesson=7,
    title="A cache of the last W positions",
    minutes=30,
    difficulty=3,
    why="Memory that stays the same however long the text is. The real model runs on it at the end of this "
    "assignment.",
    signature="MyWindowCache(config, window, batch_size=1, dtype=None, device=None)",
    kind="class",
    methods=("update", "truncate", "reset"),
    reference=SlidingWindowCache,
    cases=cases,
    observe=_observe,
    explain=explain,
    axes={"k": "layer batch head token channel", "v": "layer batch head token channel"},
    misconceptions=(
        Misconception(
            "trimmed first, then attended",
            _TrimsFirst,
            "The chunk's last token pushes out what its first query still sees. `update` gives back what is "
            "kept and the whole chunk; the ring changes when the step is over.",
        ),
        Misconception(
            "the chunk is written into the ring at once",
            _WritesAtOnce,
            "Until the last layer has been written a step may be dropped. Then the ring should be as it was, "
            "and here the old numbers have been overwritten.",
        ),
        Misconception(
            "a full window takes no more",
            _NewestLost,
            "The first tokens stay for ever and the newest are lost. A full window gives up its oldest "
            "position for the new one.",
        ),
        Misconception(
            "one position fewer than the window is kept",
            _OneFewer,
            "The next query would find all that it sees. But the window keeps its last W positions, and the "
            "spare one is what lets you take one token back.",
        ),
        Misconception(
            "nothing is ever dropped",
            _KeepsEverything,
            "The mask hides what is too old, and the memory grows with the text all the same "
            "(llm_from_scratch#3).",
        ),
        Misconception(
            "the window counts slots, padding included",
            _CountsSlots,
            "Padding is no token and takes no place. A row that waits would lose its text.",
        ),
        Misconception(
            "a rollback is never refused",
            _NeverRefuses,
            "What the window has dropped does not come back. Where the next query would see it, `truncate` "
            "has to raise a ValueError.",
        ),
        Misconception(
            "positions start again inside the window",
            _Restarted,
            "A key was turned by its position in the text, once, before it was stored. Numbered again from 0 "
            "it would be taken for a token that came earlier, and the mask would let the wrong keys through.",
        ),
        Misconception(
            "empty slots are said to hold position 0",
            _EmptyIsZero,
            "A slot that a shorter row has not filled is marked by -1. At position 0 it would be seen.",
        ),
        Misconception(
            "a step that was dropped is stored all the same",
            _DroppedStepStays,
            "When a layer is written again before the step is over, the step starts anew. What it had "
            "brought should be forgotten: `_truncate` is called for that.",
        ),
        Misconception(
            "what a dropped step had put aside is kept",
            _KeepsWhatWasDropped,
            "Nobody reads it any more, and it takes memory until the next step comes. `_truncate` is where "
            "the layer forgets it.",
        ),
        Misconception(
            "tokens that were taken back are still in the ring",
            _StaysInTheRing,
            "After a rollback the forgotten positions come again with other tokens. Their old slots should "
            "be marked empty.",
        ),
        Misconception(
            "all layers share one ring",
            _OneForAllLayers,
            "Which position stands in which slot is the same for all layers; the keys and values are not.",
        ),
        Misconception(
            "keys and values changed places",
            _Swapped,
            "Attention would look for matches among the values and average the keys. The shapes are equal, "
            "so nothing complains.",
        ),
    ),
    hints=(
        "Three things to keep: the rings of all layers, the position in each slot (one table for all), and "
        "the chunks of the step under way.",
        "`_append` joins the ring's filled slots and the chunk, and puts a copy of the chunk aside. "
        "`_settle` is the only place where a ring changes.",
        "In `_settle` the step's positions are the last L columns of `self.positions`. The table of "
        "positions can be written like the rings: give it axes of size 1.",
    ),
)
