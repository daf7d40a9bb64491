"""growing_cache: the learner's first cache, which concatenates."""

import torch

from kvlearn.cache import GrowingCache, KVCache
from kvlearn.checks.engine import Exercise, Misconception, WrongAnswer
from kvlearn.checks.lesson_04.scenario import AXES, cases, explain, play


def _observe_growing(answer, case):
    k = case["k"]
    cache, seen = play(lambda: answer(case["config"], k.shape[1], dtype=k.dtype, device=k.device), case)
    if isinstance(cache, KVCache) and len(list(cache._tensors())) > 2 * cache.num_layers:
        raise WrongAnswer(
            f"`_tensors` names {len(list(cache._tensors()))} tensors for {cache.num_layers} layer(s): each "
            "chunk is kept by itself, as in the lesson. Keep one tensor per layer for the keys, and one for "
            "the values."
        )
    return seen


class _Growing(GrowingCache):
    """A right cache, whose parts the misconceptions replace."""


class _ReturnsNewOnly(_Growing):
    def _append(self, layer, k, v):
        super()._append(layer, k, v)
        return k.clone(), v.clone()


class _FirstNotStored(_Growing):
    def _append(self, layer, k, v):
        if self._keys[layer].shape[2] == 0 and not getattr(self, f"_begun_{layer}", False):
            setattr(self, f"_begun_{layer}", True)
            return k.clone(), v.clone()
        return super()._append(layer, k, v)


class _Swapped(_Growing):
    def _append(self, layer, k, v):
        k, v = super()._append(layer, k, v)
        return v, k


class _OneForAllLayers(_Growing):
    def _append(self, layer, k, v):
        return super()._append(0, k, v)


class _InFront(_Growing):
    def _append(self, layer, k, v):
        self._keys[layer] = torch.cat((k, self._keys[layer]), dim=2)
        self._values[layer] = torch.cat((v, self._values[layer]), dim=2)
        return self._keys[layer], self._values[layer]


class _KeepsTheGiven(_Growing):
    def _append(self, layer, k, v):
        if self._keys[layer].shape[2]:
            return super()._append(layer, k, v)
        self._keys[layer], self._values[layer] = k, v
        return k, v


class _KeepsTheLast(_Growing):
    def _truncate(self, layer, length):
        start = self._keys[layer].shape[2] - length
        self._keys[layer] = self._keys[layer][:, :, start:].clone()
        self._values[layer] = self._values[layer][:, :, start:].clone()


class _NeverBack(_Growing):
    def _truncate(self, layer, length):
        pass


class _NeverBackToNothing(_Growing):
    def _truncate(self, layer, length):
        if length:
            super()._truncate(layer, length)


class _DefaultDtype(_Growing):
    def _start(self, batch_size):
        super()._start(batch_size)
        self._keys = [keys.to(torch.get_default_dtype()) for keys in self._keys]
        self._values = [values.to(torch.get_default_dtype()) for values in self._values]


class _Chunks(_Growing):
    """The lesson's own cache: a list of chunks."""

    def _start(self, batch_size):
        super()._start(batch_size)
        self._list = [[(k, v)] for k, v in zip(self._keys, self._values, strict=True)]

    def _append(self, layer, k, v):
        self._list[layer].append((k.clone(), v.clone()))
        return self._whole(layer)

    def _whole(self, layer):
        return tuple(torch.cat(side, dim=2) for side in zip(*self._list[layer], strict=True))

    def _truncate(self, layer, length):
        self._list[layer] = [tuple(side[:, :, :length].clone() for side in self._whole(layer))]

    def _tensors(self):
        return [side for chunks in self._list for chunk in chunks for side in chunk]


class _CountsKeysOnly(_Growing):
    def _tensors(self):
        return list(self._keys)


GROWING_CACHE = Exercise(
    name="growing_cache",
    lesson=4,
    title="A cache that grows",
    minutes=15,
    difficulty=2,
    why="This is the whole idea in thirty lines: what is computed once is kept, and nobody computes it "
    "again. The real model will run on your class at the end of this assignment.",
    signature="MyGrowingCache(config, batch_size=1, dtype=None, device=None)",
    kind="class",
    methods=("update", "truncate", "reset"),
    reference=GrowingCache,
    cases=cases,
    observe=_observe_growing,
    explain=explain,
    axes=AXES,
    misconceptions=(
        Misconception(
            "the new tokens come back alone",
            _ReturnsNewOnly,
            "The past was stored, but attention never gets to see it: a decode step would attend to one key, "
            "its own.",
        ),
        Misconception(
            "the first chunk was given back but not stored",
            _FirstNotStored,
            "The first step looks right, because it returns what it was given. At the second step the prompt "
            "is gone.",
        ),
        Misconception(
            "keys and values changed places",
            _Swapped,
            "Attention would look for matches among the values and average the keys. The shapes are equal, "
            "so nothing complains.",
        ),
        Misconception(
            "all layers write to one shelf",
            _OneForAllLayers,
            "Each layer has keys and values of its own. On a shared shelf the second layer finds the first "
            "one's tokens before its own.",
        ),
        Misconception(
            "the new tokens were put in front of the old ones",
            _InFront,
            "The slots should stand in the order in which they were written. The positions are kept in that "
            "order, and the mask goes by them.",
        ),
        Misconception(
            "the tensor that was given is kept itself, and not a copy",
            _KeepsTheGiven,
            "The model may reuse that memory for its next step, and the check did: what you stored has "
            "changed under your hands. The contract says that k and v are copied, never kept.",
        ),
        Misconception(
            "going back keeps the last tokens, not the first",
            _KeepsTheLast,
            "Rolling back to n slots forgets the newest. Here the oldest went.",
        ),
        Misconception(
            "going back does nothing",
            _NeverBack,
            "After a step back the forgotten tokens are still there, and the next token lands behind them.",
        ),
        Misconception(
            "going back to nothing does nothing",
            _NeverBackToNothing,
            "A length of 0 is a length: after `truncate(0)` no slot is left. In a condition 0 counts as "
            "false.",
        ),
        Misconception(
            "the cache was made in torch's default dtype",
            _DefaultDtype,
            "Empty tensors of another dtype are enough: `torch.cat` gives the wider of two dtypes, and all "
            "that is stored takes twice the bytes. The base class knows the dtype: `self.dtype`.",
        ),
        Misconception(
            "each chunk is kept by itself",
            _Chunks,
            "The numbers are right, and that is the lesson's own cache, which joins the whole list at every "
            "step. Keep one tensor per layer for the keys and one for the values.",
        ),
        Misconception(
            "only the keys are counted",
            _CountsKeysOnly,
            "The values take memory too, as much as the keys.",
        ),
    ),
    hints=(
        "What must still be there at the next call, for each layer? Make room for it in `_start`.",
        "The first call of a layer finds nothing stored yet. Either begin with tensors of length 0, or treat "
        "that call apart; in both cases store a copy.",
        "torch.cat makes a new tensor. Which of the four axes counts the tokens?",
    ),
)
