"""What the cache of lesson 07 is put through: a decoder's steps, one of them dropped, and rollbacks.

Rows of unequal lengths, a chunk longer than the window, a row that waits, a step that is begun and dropped, a
rollback of one token, one that goes too far, a reset. The tensors that were given are spoiled once the cache
has had them.
"""

from types import SimpleNamespace

import torch

from kvlearn.checks.caches import explain_first, require_two_tensors
from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, WrongAnswer

DROPPED = "a step that is dropped"  # another one is begun
TAKEN_BACK = "a step that is taken back"  # by truncate to the length that there was before
WENT = "none, it went back"


def _case(generator, label, layers, heads, dim, window, steps, dtype=torch.float32):
    config = SimpleNamespace(num_layers=layers, num_kv_heads=heads, head_dim=dim, max_position=64)
    tokens = sum(len(step[0]) for step in steps if isinstance(step, list))
    shape = (layers, len(steps[0]), heads, tokens, dim)
    k, v = (randn(generator, *shape, dtype=dtype) for _ in "kv")
    return Case({"config": config, "window": window, "k": k, "v": v, "steps": steps}, label)


def cases(generator):
    unequal = [
        [[-1, -1, -1, 0, 1], [0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]],  # a prompt, longer than the window
        [[2], [5], [3]],
        [[3, 4], [-1, -1], [4, 5]],  # row 1 waits
        DROPPED,
        [[5, 6, 7], [6, 7, 8], [6, 7, 8]],
        [[5], [6], [6]],  # another step in its place
        "one back",
        [[5], [6], [6]],
        "too far back",
        [[6], [-1], [7]],
    ]
    alone = [
        [[0, 1, 2, 3, 4, 5, 6]],
        [[7, 8]],
        TAKEN_BACK,
        [[9, 10, 11]],
        [[9]],
        "one back",
        "too far back",
        [[9, 10]],
        "all back",
        [[0, 1, 2]],
    ]
    short = [[[0, 1], [-1, 0]], "one back", [[1], [0]], [[2, 3], [1, 2]], "reset", [[0], [0]], [[-1], [1]]]
    short += [[[-1], [2]]]  # row 0 waits: what a reset has left of it would come back
    return [
        _case(generator, "prompts of unequal lengths", 2, 5, 6, 4, unequal),
        _case(generator, "one text in float64", 3, 2, 4, 5, alone, torch.float64),
        _case(generator, "inside the window", 4, 1, 10, 9, short),
    ]


def play(make, case):
    """What the cache gave back on the way."""
    cache, seen, used, slots = make(), {}, 0, 0
    seen["contents of `cache.window`, which the decoder's mask reads,"] = str(cache.window)
    complete = True  # bytes are compared until something is taken back
    steps = iter(case["steps"])
    for number, step in enumerate(steps):
        when = f"step {number}, after {slots} slots"  # no two labels alike: a later one would hide the other
        if step == "one back":
            answer = _go_back(cache, 1)
            seen[f"answers to taking one token back in {when},"] = answer
            complete, slots = False, slots - 1
            if answer != WENT:
                cache.reset()  # and the next steps find an empty cache
        elif step == "all back":
            answer = _go_back(cache, slots)
            seen[f"answers to taking everything back in {when},"] = answer
            complete, slots = False, 0
            if answer != WENT:
                cache.reset()
        elif step == "too far back":
            seen[f"answers to a rollback that goes too far in {when},"] = _go_back(cache, 4)
        elif step == "reset":
            cache.reset()
            slots = 0
        elif step in (DROPPED, TAKEN_BACK):
            given = next(steps)
            _step(cache, case, given, used, {}, when, layers=case["config"].num_layers - 1)
            used += len(given[0])
            if step == TAKEN_BACK:
                answer = _go_back(cache, 0)
                seen[f"answers to going back to {slots} slots, in the middle of {when},"] = answer
                if answer != WENT:
                    cache.reset()
                _count_bytes(cache, case, seen, f"when {when}, had been taken back in its middle")
        else:
            _step(cache, case, step, used, seen, f"in {when}")
            used, slots = used + len(step[0]), slots + len(step[0])
            if complete:
                _count_bytes(cache, case, seen, f"after {slots} slots")
    return seen


def _step(cache, case, positions, used, seen, when, layers=None):
    """Give the layers the next tokens, and note what comes back, row by row in the order of positions."""
    given = torch.tensor(positions)
    for layer in range(layers or case["config"].num_layers):
        new = [case[letter][layer][:, :, used : used + given.shape[1]].clone() for letter in "kv"]
        back = cache.update(layer, *new, given)
        require_two_tensors(back, " (batch, kv heads, slots, head_dim): the keys and the values", ndim=4)
        where = cache.key_positions(layer)
        if not back[0].shape[2] == back[1].shape[2] == where.shape[1]:
            raise WrongAnswer(
                f"In layer {layer} {back[0].shape[2]} keys and {back[1].shape[2]} values come back, and "
                f"the positions say {where.shape[1]} slots: what `_kept_positions` says, then the chunk of "
                f"{given.shape[1]}. Each slot has one position."
            )
        for row, line in enumerate(where.tolist()):
            slots = sorted((slot for slot, p in enumerate(line) if p >= 0), key=lambda slot: line[slot])
            found = ", ".join(str(line[slot]) for slot in slots)
            seen[f"positions that come back for layer {layer}, row {row}, {when}"] = found or "none"
            for name, side in zip(("keys", "values"), back, strict=True):
                seen[f"{name} of layer {layer}, row {row}, {when}"] = side[row][:, slots].clone()
        for side in new:
            side.fill_(torch.nan)


def _go_back(cache, slots):
    try:
        cache.truncate(max(cache.length - slots, 0))  # a cache that was reset holds fewer
    except ValueError:
        return "a ValueError"
    return WENT


def _count_bytes(cache, case, seen, after):
    layers, batch, heads, _, dim = case["k"].shape
    slot = 2 * layers * batch * heads * dim * case["k"].itemsize
    seen[f"bytes used {after}"] = cache.used_bytes
    room, most = cache.allocated_bytes, case["window"] * slot
    seen[f"bytes allocated {after}"] = f"at most {most}" if room <= most else str(room)


def explain(case, got, want):
    """The first thing that differs, in words; or None."""

    def explain_tensor(label, mine, right):
        place = int((mine != right).any(dim=2).any(dim=0).nonzero()[0])
        where = label.split(" of ", 1)[1]
        positions = want[f"positions that come back for {where}"].split(", ")
        nan = " It is NaN: the tensors that were given are kept, not copies." if mine.isnan().any() else ""
        return f"The {label}: that of position {positions[place]} is not the one that was given.{nan}"

    sentence = f"Window {case['window']}. The {{label}} should be {{right}}; they are {{mine}}."
    return explain_first(got, want, sentence, explain_tensor)
