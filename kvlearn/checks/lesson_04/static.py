"""static_cache: the learner's cache with a room of fixed size, written in place."""

from kvlearn.cache import GrowingCache, KVCache, StaticCache
from kvlearn.checks.engine import Exercise, Misconception
from kvlearn.checks.lesson_04.scenario import AXES, cases, explain, play

ROOM = 130  # max_length: more than all layers' tokens together, so that a place that drifts hits no wall


def _observe_static(answer, case):
    k = case["k"]
    moved, copied = set(), []

    def see(cache, back):
        if isinstance(cache, KVCache):
            rooms = {tensor.untyped_storage().data_ptr() for tensor in cache._tensors()}
            moved.add(frozenset(rooms))
            copied.append(any(side.untyped_storage().data_ptr() not in rooms for side in back))

    cache, seen = play(
        lambda: answer(case["config"], k.shape[1], ROOM, dtype=k.dtype, device=k.device), case, see
    )
    return {
        **seen,
        "bytes allocated": cache.allocated_bytes,
        "a new room at some step": len(moved) > 1,
        "copies come back": any(copied),
    }


def _explain(case, got, want):
    text = explain(case, got, want)
    if text is None or text.startswith("The copies come back"):
        return text and (
            "The numbers are right. But what comes back is a copy of all that is stored, at every step. A "
            "slice of the room is a view and copies nothing."
        )
    if text.startswith("The bytes allocated"):
        if got["bytes allocated"] > want["bytes allocated"] / ROOM * 3:
            return (
                f"The numbers are right. But the room takes {got['bytes allocated']:,} bytes, and one of "
                f"max_length = {ROOM} slots in every layer takes {want['bytes allocated']:,}."
            )
        return (
            "The numbers are right. But the storages behind `_tensors` hold what is written and no more: "
            "either every step concatenates, and copies the whole past, or `_tensors` names copies and not "
            "views of the room."
        )
    if text.startswith("The a new room"):
        return (
            "The numbers are right. But the tensors that `_tensors` names lie elsewhere from step to step: "
            "the room is made anew, and the whole past copied. Make it once, in `_start`, and write into it."
        )
    return text


class _Static(StaticCache):
    """A right cache, whose parts the misconceptions replace."""


class _WholeRoom(_Static):
    def _append(self, layer, k, v):
        super()._append(layer, k, v)
        return self._keys[layer], self._values[layer]


class _AlwaysAtTheStart(_Static):
    def _append(self, layer, k, v):
        length = self._lengths[layer] + k.shape[2]
        self._lengths[layer] = 0
        super()._append(layer, k, v)
        self._lengths[layer] = length
        return self._stored(layer)

    def _start(self, batch_size):
        super()._start(batch_size)
        self._keys.zero_()
        self._values.zero_()


class _OneLength(_Static):
    """One counter for all layers, moved by each of them."""

    def _append(self, layer, k, v):
        self._lengths[layer] = max(self._lengths)
        back = super()._append(layer, k, v)
        self._lengths = [self._lengths[layer]] * self.num_layers
        return back

    def _start(self, batch_size):
        super()._start(batch_size)
        self._keys.zero_()
        self._values.zero_()


class _StaticNewOnly(_Static):
    def _append(self, layer, k, v):
        super()._append(layer, k, v)
        return k.clone(), v.clone()


class _StaticSwapped(_Static):
    def _append(self, layer, k, v):
        k, v = super()._append(layer, k, v)
        return v, k


class _OneRoom(_Static):
    """One room for all layers, each with the right length."""

    def _start(self, batch_size):
        super()._start(batch_size)
        self._keys, self._values = (
            room[:1].clone().expand(self.num_layers, -1, -1, -1, -1) for room in (self._keys, self._values)
        )


class _StaticNeverBack(_Static):
    def _truncate(self, layer, length):
        pass


class _CountsTheRoom(_Static):
    def _tensors(self):
        return [self._keys, self._values]


class _RoomCloned(_Static):
    def _append(self, layer, k, v):
        self._keys, self._values = self._keys.clone(), self._values.clone()
        return super()._append(layer, k, v)


class _GivesCopies(_Static):
    def _append(self, layer, k, v):
        return tuple(side.clone() for side in super()._append(layer, k, v))


class _ConcatenatedAfterAll(GrowingCache):
    def __init__(self, config, batch_size=1, max_length=ROOM, *, dtype=None, device=None):
        super().__init__(config, batch_size, dtype=dtype, device=device)
        self.max_length = max_length


STATIC_CACHE = Exercise(
    name="static_cache",
    lesson=4,
    title="A cache with room",
    minutes=20,
    difficulty=2,
    why="No step copies the past any more. This is how engines keep a cache, and the two mistakes that it "
    "invites, empty slots and places that drift, have been shipped more than once.",
    signature="MyStaticCache(config, batch_size=1, max_length=20, dtype=None, device=None)",
    kind="class",
    methods=("update", "truncate", "reset"),
    reference=StaticCache,
    cases=cases,
    observe=_observe_static,
    explain=_explain,
    axes=AXES,
    misconceptions=(
        Misconception(
            "the whole room came back, empty slots included",
            _WholeRoom,
            "An empty slot is a key like any other to attention: a score of 0 still gets a share. The "
            "decoder's mask knows only the slots that were written.",
        ),
        Misconception(
            "every chunk is written at the start of the room",
            _AlwaysAtTheStart,
            "The new tokens overwrite the oldest. The place of a new token is behind all that are stored.",
        ),
        Misconception(
            "one place for all layers, moved by each layer",
            _OneLength,
            "Every layer writes the same step. If the place moves once a layer, the second layer writes "
            "further to the right than the first, and leaves a hole.",
        ),
        Misconception(
            "the new tokens come back alone",
            _StaticNewOnly,
            "The past was stored, but attention never gets to see it.",
        ),
        Misconception(
            "keys and values changed places",
            _StaticSwapped,
            "Attention would look for matches among the values and average the keys. The shapes are equal, "
            "so nothing complains.",
        ),
        Misconception(
            "all layers share one room",
            _OneRoom,
            "Each layer has keys and values of its own. Here each layer overwrote the one before it, and the "
            "past of all layers is the last layer's.",
        ),
        Misconception(
            "going back does nothing",
            _StaticNeverBack,
            "After a step back the place should be further left. Here the next token lands behind the "
            "forgotten ones.",
        ),
        Misconception(
            "the empty room counts as used",
            _CountsTheRoom,
            "`used_bytes` is what the stored tokens need; the room as a whole is `allocated_bytes`. Both "
            "come from the tensors that you name.",
        ),
        Misconception(
            "the room is copied at every step",
            _RoomCloned,
            "The numbers are right, and each step copies the room whole, which is even more than a cache "
            "that concatenates does. Write into the room that `_start` made.",
        ),
        Misconception(
            "copies of the room come back",
            _GivesCopies,
            "The numbers are right, and each step copies all that is stored. A slice of the room is a view: "
            "attention can read it where it lies.",
        ),
        Misconception(
            "no room stands behind the tensors that are named",
            _ConcatenatedAfterAll,
            "The numbers are right. But the storages hold what is written and no more: either every step "
            "concatenates, and copies the whole past, or `_tensors` names copies and not views of the room.",
        ),
    ),
    hints=(
        "Two things per layer: a room for max_length tokens (for keys and for values), and how many of its "
        "slots are written.",
        "A slice of a tensor is a view: assigning to it writes into the room.",
        "Give back only the slots that are written. And what does going back to n slots have to change, if "
        "the rest of the room is never shown to anybody?",
    ),
)
