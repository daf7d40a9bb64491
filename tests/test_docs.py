"""docs/teaching.md says of each lesson what the lesson, its assignment and its checks say themselves."""

import re
from pathlib import Path

import pytest

from kvlearn import measure, sizing
from kvlearn.checks import REGISTRY
from kvlearn.model_store import DEFAULT, MODELS

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs/teaching.md").read_text(encoding="utf-8")
NAMES = sorted(path.stem for path in (ROOT / "course/lessons").glob("[0-9]*.py"))
FRONT, *_PARTS = re.split(r"^(?=## \d\d )", GUIDE, flags=re.M)
SECTIONS = {part[3:5]: part for part in _PARTS}


def source(kind, number):
    (path,) = (ROOT / "course" / kind).glob(f"{number}_*.py")
    return path.read_text(encoding="utf-8")


def exercises(number):
    return {e.name: e.minutes for e in REGISTRY.values() if e.lesson == int(number)}


def lesson_minutes(number):
    """What the first lines of a lesson tell the reader."""
    head = source("lessons", number)[:1500].replace("\n#", "")
    said = re.search(r"(?:Allow|About|Allow about) (?:(\d+) minutes|an hour)\b", head)
    return int(said[1] or 60)


def headings(number):
    texts = source("lessons", number) + source("assignments", number)
    return {re.sub(r"^\d+ · ", "", title) for title in re.findall(r"^# #+ (.+)$", texts, flags=re.M)}


def flat(text):
    return " ".join(text.split())


def part(number, title):
    """The text under a bold title of a lesson's section."""
    return re.search(rf"\*\*{title}\.?\*\*(.*?)(?=^\*\*[A-Z]|\Z)", SECTIONS[number], flags=re.M | re.S)[1]


def tables(text):
    """Each table of a text as a list of rows, header and rule left out."""
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.M)
    return [[cells(line) for line in table.splitlines()[2:]] for table in found]


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def items(text):
    """The points of a list with hyphens, each in one line."""
    return [flat(item) for item in re.findall(r"^- (.*?)(?=^- |\Z)", text, flags=re.M | re.S)]


def test_every_lesson_has_a_section_under_its_own_title():
    """A lesson is added or renamed, and the guide goes on with the old list."""
    titles = [re.match(r"# %% \[markdown\]\n# # (.+)", source("lessons", name[:2]))[1] for name in NAMES]
    assert re.findall(r"^## (\d\d .+)$", GUIDE, flags=re.M) == titles


@pytest.mark.parametrize("number", [name[:2] for name in NAMES])
def test_minutes_and_exercises_are_those_of_lesson_and_registry(number):
    """An exercise's minutes change, or one is added, and the guide still plans with the old figure."""
    line = r"\*\*Lesson (\d+) minutes, assignment (\d+):\*\*(.*?)\*\*"
    lesson, assignment, names = re.search(line, flat(SECTIONS[number])).groups()
    listed = {name: int(minutes) for name, minutes in re.findall(r"`(\w+)` (\d+)", names)}
    assert listed == exercises(number)
    assert int(assignment) == sum(exercises(number).values())
    assert int(lesson) == lesson_minutes(number)


def test_the_overview_adds_up():
    """A line of the overview, or its sum, is left behind when a lesson changes."""
    rows = tables(FRONT)[0]
    want = []
    for name in NAMES:
        named = exercises(name[:2])
        want.append([name[:2], lesson_minutes(name[:2]), sum(named.values()), len(named)])
    want.append(["all", *(sum(row[i] for row in want) for i in (1, 2, 3))])
    assert [[row[0][:3].strip(), *map(int, row[1:])] for row in rows] == want


def named(cell, taken):
    """The exercises that a cell of a plan means: names, "all of 02", "... but `x`", "rest of 02"."""
    chosen = []
    for clause in filter(None, (c.strip() for c in cell.split(";"))):
        names = re.findall(r"`(\w+)`", clause)
        whole = re.match(r"(all|rest) of (\d\d)( but)?", clause)
        if whole:
            left_out = set(names) | (taken if whole[1] == "rest" else set())
            names = [name for name in exercises(whole[2]) if name not in left_out]
        chosen += names
    return chosen


@pytest.mark.parametrize("plan", [1, 2, 3])
def test_a_plan_gives_the_minutes_of_what_it_names(plan):
    """A session is overfull because an exercise grew, was renamed, or was given to two sessions."""
    rows = tables(FRONT)[plan]
    in_the_room = {name for row in rows for name in named(row[2], set())}
    given = []
    for _, lessons, room, minutes, home, home_minutes in rows:
        here, later = named(room, set()), named(home, in_the_room)
        given += here + later
        time = sum(lesson_minutes(number) for number in re.findall(r"\d\d", lessons))
        assert int(minutes) == time + sum(REGISTRY[name].minutes for name in here)
        assert int(home_minutes) == sum(REGISTRY[name].minutes for name in later)
    assert len(given) == len(set(given))


def test_ten_sessions_hold_everything():
    """The plan that promises everything forgets an exercise that was added."""
    rows = tables(FRONT)[3]
    in_the_room = {name for row in rows for name in named(row[2], set())}
    given = [name for row in rows for name in named(row[2], set()) + named(row[4], in_the_room)]
    assert len(rows) == 10
    assert sorted(given) == sorted(REGISTRY)


@pytest.mark.parametrize("number", [name[:2] for name in NAMES])
def test_the_mistakes_are_quoted_as_the_checks_name_them(number):
    """A misconception is renamed or dropped, and the instructor looks for words that no student reads."""
    bullets = items(part(number, "What goes wrong"))
    assert 2 <= len(bullets) <= 5
    for bullet in bullets:
        name, exercise, rest = re.match(r"\*\*(.+?)\*\* \(`(\w+)`\)\. (.*)", bullet).groups()
        assert exercise in exercises(number)
        assert name in {m.name for m in REGISTRY[exercise].misconceptions}
        assert re.match(r"They thought: .+ Ask: .+\?", rest), rest


@pytest.mark.parametrize("number", [name[:2] for name in NAMES])
def test_goals_and_questions_are_there(number):
    """A section is left half written."""
    asked = [flat(one) for one in re.split(r"^\d\. ", part(number, "To discuss"), flags=re.M)[1:]]
    assert 3 <= len(items(part(number, "Afterwards a student can"))) <= 4
    assert 2 <= len(asked) <= 3
    assert all(re.match(r"\*[^*]+[?.]\* \w.{80}", one) for one in asked)


@pytest.mark.parametrize("number", [name[:2] for name in NAMES])
def test_sections_that_are_named_exist(number):
    """A heading of a lesson changes, and the guide sends the instructor to one that is not there."""
    places = re.findall(r"\*([^*]+)\*", flat(part(number, "The room")))
    live = [row[1] for row in tables(FRONT)[4] if row[0] == number]
    places += [re.match(r"\*(.+?)\*", cell)[1] for cell in live]
    skipped = re.search(r"First to go: (.*?)\. Never skip", flat(FRONT))[1]
    for clause in skipped.split("; "):
        if clause.startswith(f"in {number} "):
            places += re.findall(r"\*([^*]+)\*", clause)
    assert len(live) == 1
    assert set(places) <= headings(number)


def test_links_lead_somewhere():
    """A notebook is renamed, and the guide's link is dead."""
    for link in re.findall(r"\]\(([^)]+)\)", GUIDE):
        assert (ROOT / "docs" / link).exists(), link


def test_what_is_pasted_and_what_loads_the_model():
    """An assignment begins to need an earlier answer, or the model, and the guide says that it does not."""
    pasted, loading = set(), []
    for name in NAMES:
        text = source("assignments", name[:2])
        pasted |= set(re.findall(r'^# %% paste="(\w+)"', text, flags=re.M))
        loading += [name[:2]] if "load_or_tiny(" in text else []
    sentence = re.search(r"students need only (.*?)\. Inside", flat(FRONT))[1]
    assert set(re.findall(r"`(\w+)`", sentence)) == pasted
    assert re.search(r"Of the assignments only ([\d, and]+) load it", flat(FRONT))[1] == (
        ", ".join(loading[:-1]) + " and " + loading[-1]
    )


def test_the_size_of_the_model():
    """Another model is packaged, and the room plans its network with the old size."""
    model = MODELS[DEFAULT]
    assert f"{model.download_bytes / 1e6:.0f} MB from the Python package index" in flat(FRONT)
    assert f"({model.needed_bytes / 1e6:.0f} MB free are needed" in flat(FRONT)
    on_disk = re.search(r"which become (\d+) MB", flat(FRONT))[1]
    assert f"which become {on_disk} MB" in flat((ROOT / "README.md").read_text(encoding="utf-8"))


def test_numbers_in_the_answers():
    """A number in the sketch of an answer is wrong, or was right before a size was corrected."""
    guide = flat(GUIDE)
    size, model = sizing.cache_bytes, sizing.model
    texts = (40, 20), (4000, 20), (40, 2000)
    ratio = [measure.naive_projections(*n) / measure.cached_projections(*n) for n in texts]
    assert f"About {ratio[0]:.0f}, {ratio[1]:.0f} and {round(ratio[2], -1):,.0f}." in guide
    smol = model("smollm2-135m")
    assert f"K and V together {2 * smol.num_kv_heads * smol.head_dim}:" in guide

    large, cards = model("llama-3.1-70b"), 2 * 80 * 10**9
    fit = [sizing.max_batch(large, 131072, cards, dtype=d, weights="int4") for d in ("bf16", "fp8")]
    assert fit == [2, 5] and "two fit, and five with the cache in fp8" in guide
    assert f"weights take {sizing.weight_bytes(large, 'int4') / 1e9:.0f} GB in 4 bits" in guide
    assert f"tokens {size(large, 131072) / 1e9:.0f} GB in 16 bits" in guide
    crossing = sizing.crossover_tokens(model("llama-3.1-8b"))
    assert f"about {round(crossing, -2):,} tokens in all" in guide

    gemma = model("gemma-3-27b")
    few, many = size(gemma, 65536, 4) / 2**30, size(gemma, 32768, 8) / 2**30
    assert f"take {many:.1f} GiB, 4 of 65,536 take {few:.1f}." in guide
    full = gemma.but(windows=None)
    assert f"{size(full, 131072) / size(gemma, 131072):.2f} at 131,072 tokens" in guide
    assert size(full, 1024) == size(gemma, 1024)

    ranks = [sizing.bytes_per_token(model(n), ranks=8) for n in ("deepseek-v3", "llama-3-70b")]
    assert "{:,} against {:,}".format(*ranks) in guide
    llama = model("llama-3-8b")
    less = [size(llama, n) / size(llama, n, dtype="int4") for n in (50, 100, 10**6)]
    assert f"about {less[0]:.2f} times smaller for Llama-3-8B; {less[1]:.1f} times at 100" in guide
    assert f"{less[2]:.1f} in the limit" in guide
