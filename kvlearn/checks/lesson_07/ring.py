"""ring_positions and ring_write: which position stands in which slot, and how it gets there."""

import numpy
import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception

# ring_positions -----------------------------------------------------------------------------------


def ring_positions(length, window):
    """Oracle: one token after another takes its slot."""
    slots = [-1] * window
    for position in range(length):
        slots[position % window] = position
    return slots


def _position_cases(generator):
    window = int(torch.randint(7, 12, (1,), generator=generator))
    length = window * 3 + int(torch.randint(1, window - 1, (1,), generator=generator))
    pairs = [
        (10, 4, "10 tokens in a ring of 4"),
        (3, 5, "a ring that is not full"),
        (5, 5, "just full"),
        (6, 5, "one more than fit"),
        (0, 3, "nothing yet"),
        (length, window, "several laps"),
    ]
    return [Case({"length": length, "window": window}, label) for length, window, label in pairs]


def _observe_positions(answer, case):
    slots = answer(case["length"], case["window"])
    return slots.tolist() if isinstance(slots, torch.Tensor | numpy.ndarray) else slots


def _explain_positions(case, got, want):
    slot = next(i for i, (ours, right) in enumerate(zip(got, want, strict=True)) if ours != right)
    who = "is empty (-1)" if want[slot] < 0 else f"holds position {want[slot]}"
    return (
        f"After {case['length']} tokens, slot {slot} of a ring of {case['window']} {who}; yours says "
        f"{got[slot]}."
    )


def _by_age(length, window):
    kept = list(range(max(0, length - window), length))
    return kept + [-1] * (window - len(kept))


RING_POSITIONS = Exercise(
    name="ring_positions",
    lesson=7,
    title="Who stands in which slot?",
    minutes=10,
    difficulty=2,
    why="The mask needs the position of every slot. A ring keeps no order of age: after a lap the newest "
    "token stands in the middle.",
    signature="ring_positions(length, window)",
    reference=ring_positions,
    cases=_position_cases,
    observe=_observe_positions,
    explain=_explain_positions,
    misconceptions=(
        Misconception(
            "the slots are in the order of age, the oldest first",
            _by_age,
            "That would be a list from which the first is taken out and everything moves up. In a ring "
            "nothing moves: a new token takes the place of the oldest.",
        ),
        Misconception(
            "the newest stands in slot 0",
            lambda length, window: (
                (_by_age(length, window)[::-1] + [-1] * window)[:window]
                if length >= window
                else [*range(length - 1, -1, -1), *[-1] * (window - length)]
            ),
            "In a ring nothing moves: a token stays in the slot that it was written to.",
        ),
        Misconception(
            "empty slots are said to hold position 0",
            lambda length, window: [max(0, position) for position in ring_positions(length, window)],
            "Position 0 is the first token of the text. A slot that holds nothing is marked by -1, and "
            "nobody sees it.",
        ),
        Misconception(
            "empty slots are left out",
            lambda length, window: [p for p in ring_positions(length, window) if p >= 0],
            "One entry a slot, empty ones too: the entry's place in the list is the slot's number.",
        ),
        Misconception(
            "one token too many",
            lambda length, window: ring_positions(length + 1, window),
            "After `length` tokens the last position is length - 1: positions begin at 0.",
        ),
        Misconception(
            "positions begin at 1",
            lambda length, window: [p + 1 if p >= 0 else -1 for p in ring_positions(length, window)],
            "The first token of a text stands at position 0.",
        ),
        Misconception(
            "a full ring takes no more: the first tokens stay",
            lambda length, window: ring_positions(min(length, window), window),
            "A full window gives up its oldest token for the new one. Here the newest are lost.",
        ),
        Misconception(
            "one slot too many",
            lambda length, window: ring_positions(length, window + 1),
            "A ring of W slots keeps W positions.",
        ),
        Misconception(
            "a full ring starts its lap again with the text's rest",
            lambda length, window: [
                position if position >= length - length % window or length % window == 0 else -1
                for position in ring_positions(length, window)
            ],
            "A lap that begins does not empty the ring. The slots not yet reached hold the lap before.",
        ),
    ),
    hints=(
        "Play it on paper: 4 slots, tokens 0 to 5. Where does token 4 go?",
        "Position p goes to slot p % window. Several positions have the same slot; which of them is there?",
        "A loop over all positions, in their order, is a right answer. So is a formula: how far is it from "
        "the slot to the last position's slot, backwards?",
    ),
)

# ring_write ---------------------------------------------------------------------------------------


def ring_write(ring, new, positions):
    """Oracle: one row and one token at a time."""
    ring, window = ring.clone(), ring.shape[2]
    for row, line in enumerate(positions.tolist()):
        for place, position in enumerate(line):
            if position >= 0:
                ring[row, :, position % window] = new[row, :, place]
    return ring


def _write_cases(generator):
    def draw(batch, heads, window, length, dim, positions, label, dtype=torch.float32):
        ring = randn(generator, batch, heads, window, dim, dtype=dtype)
        new = randn(generator, batch, heads, length, dim, dtype=dtype)
        return Case({"ring": ring, "new": new, "positions": torch.tensor(positions)}, label)

    prompts = [[-1, -1, -1, -1, 0, 1], [0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3]]
    return [
        draw(2, 3, 5, 1, 4, [[7], [2]], "a token a row"),
        draw(3, 2, 4, 6, 5, prompts, "prompts of unequal lengths"),
        draw(2, 1, 3, 5, 6, [[7, -1, 8, 9, 10], [-1] * 5], "a row that waits", torch.float64),
        draw(1, 2, 7, 3, 4, [[12, 13, 14]], "over the ring's end"),
        draw(2, 1, 3, 4, 5, [[5, 6, -1, -1], [-1, 5, -1, 7]], "padding behind, and a gap"),
        draw(1, 3, 4, 2, 5, [[-1, -1]], "nothing but padding"),
    ]


def _explain_write(case, got, want):
    row, slot = (got != want).any(dim=3).any(dim=1).nonzero()[0].tolist()
    line, window = case["positions"][row].tolist(), case["ring"].shape[2]
    inside = [position for position in line if position >= 0 and position % window == slot]
    right = f"the token of position {inside[-1]}" if inside else "what it held before"
    return f"Row {row} is given positions {line}. Slot {slot} of {window} should then hold {right}."


def _each(ring, new, positions, slot_of, order=1):
    """A wrong answer: slot_of(position, place, tokens of the row so far, window) -> slot, or None."""
    ring, window = ring.clone(), ring.shape[2]
    for row, line in enumerate(positions.tolist()):
        for place, position in list(enumerate(line))[::order]:
            real = sum(p >= 0 for p in line[:place])
            slot = slot_of(position, place, real, window)
            if slot is not None:
                ring[row, :, slot] = new[row, :, place]
    return ring


def _writes(slot_of, order=1):
    return lambda ring, new, positions: _each(ring, new, positions, slot_of, order)


def _real(rule):
    return lambda position, place, real, window: (
        rule(position, place, real, window) if position >= 0 else None
    )


def _first_row_for_all(ring, new, positions):
    return ring_write(ring, new, positions[:1].expand_as(positions))


def _moved_up(ring, new, positions):
    return torch.cat((ring, new), dim=2)[:, :, -ring.shape[2] :].clone()


RING_WRITE = Exercise(
    name="ring_write",
    lesson=7,
    title="Write into a ring",
    minutes=15,
    difficulty=3,
    why="Each row of a batch stands at another place of its text, and padding is no token. Here a ring is "
    "right or wrong row by row.",
    signature="ring_write(ring, new, positions)",
    reference=ring_write,
    cases=_write_cases,
    explain=_explain_write,
    own_memory=True,
    axes={
        "ring": "batch head slot channel",
        "new": "batch head token channel",
        "positions": "batch token",
        "return": "batch head slot channel",
    },
    misconceptions=(
        Misconception(
            "padding was written",
            _writes(lambda position, place, real, window: position % window),
            "-1 % window is window - 1 in Python: padding lands in the ring's last slot, and overwrites a "
            "token there. Padding takes no place.",
        ),
        Misconception(
            "the slot is counted from the chunk's first column",
            _writes(_real(lambda position, place, real, window: place % window)),
            "Where a token stands in this chunk says nothing about its place in the text. The slot comes "
            "from the position.",
        ),
        Misconception(
            "each chunk begins at slot 0",
            _writes(_real(lambda position, place, real, window: real % window)),
            "Padding is passed over, and the count starts anew with every chunk. A prompt comes out right, "
            "and the first token after it lands on slot 0.",
        ),
        Misconception(
            "the first row's positions were used for all rows",
            _first_row_for_all,
            "Each row of the batch is a text of its own and has its ring at a place of its own.",
        ),
        Misconception(
            "of a chunk longer than the ring the first tokens stay",
            _writes(_real(lambda position, place, real, window: position % window), order=-1),
            "Two tokens of one chunk may have the same slot. The later one belongs there: the window keeps "
            "the newest.",
        ),
        Misconception(
            "what does not fit is dropped",
            _writes(_real(lambda position, place, real, window: position if position < window else None)),
            "Positions past the end of the ring go round. Here the newest tokens are lost.",
        ),
        Misconception(
            "what does not fit goes to the last slot",
            _writes(_real(lambda position, place, real, window: min(position, window - 1))),
            "Positions past the end of the ring go round, to slot 0 and on.",
        ),
        Misconception(
            "everything moves up, and the new tokens stand at the end",
            _moved_up,
            "This copies the whole window at every token, and padding pushes tokens out. In a ring each "
            "token is written once, into its own slot.",
        ),
    ),
    hints=(
        "Two loops, over the rows and over the columns of `positions`, are a right answer.",
        "A token at position p goes to slot p % window; what does -1 % window give in Python?",
        "Work on a copy of the ring. If a chunk is longer than the ring, in which order must it be written?",
    ),
)
