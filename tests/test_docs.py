"""docs/teaching.md says of each lesson what the lesson, its assignment and its checks say themselves."""

import re
from pathlib import Path

import pytest
import torch

import kvlearn
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


def question(number):
    """{grade_id: minutes} of the question in words that an assignment asks; empty where it asks none."""
    form = r'^# \*(\d+) minutes · 3 points · .*?^# %% \[markdown\] why="(\w+)"'
    asked = re.findall(form, source("assignments", number), flags=re.M | re.S)
    return {name: int(minutes) for minutes, name in asked}


def tasks(number):
    """Minutes of all that an assignment asks for."""
    return exercises(number) | question(number)


MINUTES = {name: minutes for lesson in NAMES for name, minutes in tasks(lesson[:2]).items()}


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
    asked = [int(minutes) for minutes in re.findall(r"; question (\d+)\.", names)]
    assert asked == list(question(number).values())
    assert int(assignment) == sum(tasks(number).values())
    assert int(lesson) == lesson_minutes(number)


@pytest.mark.parametrize("number", [name[:2] for name in NAMES])
def test_an_assignment_says_its_minutes_itself(number):
    """A question or an exercise is added, and the first lines of the assignment promise less."""
    text = source("assignments", number)
    assert len(question(number)) == text.count("why=") == int(number != "00")
    head = flat(text[:900].replace("\n#", ""))
    assert int(re.search(r"about (\d+) minutes", head)[1]) == sum(tasks(number).values())
    counts = "No One Two Three Four Five Six Seven Eight Nine".split()
    asked = " and one question," if question(number) else ","
    assert re.search(rf"{counts[len(exercises(number))]} (small )?(functions|exercises){asked}", head)


def test_the_overview_adds_up():
    """A line of the overview, or its sum, is left behind when a lesson changes."""
    rows = tables(FRONT)[0]
    want = []
    for name in NAMES:
        number = name[:2]
        minutes = [sum(asked(number).values()) for asked in (tasks, question)]
        want.append([number, lesson_minutes(number), *minutes, len(exercises(number))])
    want.append(["all", *(sum(row[i] for row in want) for i in (1, 2, 3, 4))])
    assert [[row[0][:3].strip(), *map(int, row[1:])] for row in rows] == want


def named(cell, taken):
    """What a cell of a plan means: names, "question of 02", "all of 02", "... but `x`", "rest of 02"."""
    chosen = []
    for clause in filter(None, (c.strip() for c in cell.split(";"))):
        names = re.findall(r"`(\w+)`", clause)
        whole = re.match(r"(all|rest) of (\d\d)( but)?", clause)
        if whole:
            left_out = set(names) | (taken if whole[1] == "rest" else set())
            left_out |= set(question(whole[2])) if "the question" in clause else set()
            names = [name for name in tasks(whole[2]) if name not in left_out]
        elif clause.startswith("question of "):
            names = list(question(clause.removeprefix("question of ")))
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
        assert int(minutes) == time + sum(MINUTES[name] for name in here)
        assert int(home_minutes) == sum(MINUTES[name] for name in later)
    assert len(given) == len(set(given))


def test_ten_sessions_hold_everything():
    """The plan that promises everything forgets an exercise or a question that was added."""
    rows = tables(FRONT)[3]
    in_the_room = {name for row in rows for name in named(row[2], set())}
    given = [name for row in rows for name in named(row[2], set()) + named(row[4], in_the_room)]
    assert len(rows) == 10
    assert sorted(given) == sorted(MINUTES)


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


@pytest.mark.parametrize("number", [name[:2] for name in NAMES])
def test_a_widget_has_a_static_figure_in_its_section(number):
    """A panel is added, and who reads the stored notebook sees nothing in its place."""
    for section in re.split(r"^# ##+ ", source("lessons", number), flags=re.M):
        cells = section.split("# %%")
        if any("widgets." in cell for cell in cells):
            assert any("figures." in cell for cell in cells if "widgets." not in cell), section[:60]


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
    llama = model("llama-3.1-8b")
    tables = 2 * llama.vocab_size * llama.hidden_size
    deep = llama.but(num_layers=64, windows=None, parameters=2 * llama.parameters - tables)
    crossings = [round(sizing.crossover_tokens(shape), -2) for shape in (llama, deep)]
    assert "from about {:,} tokens in all to {:,}.".format(*crossings) in guide

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


def keys_and_values(decoder, tokens):
    """What a pass hands to attention: (keys, values), one tensor a layer each."""
    kept, attention = ([], []), decoder.attention

    def recording(q, k, v, mask=None):
        kept[0].append(k)
        kept[1].append(v)
        return attention(q, k, v, mask=mask)

    decoder.attention = recording
    decoder(tokens)
    decoder.attention = attention
    return kept


def unchanged(before, after):
    """The layers whose keys are the same, and those whose values are."""
    sides = zip(before, after, strict=True)
    return [[i for i, pair in enumerate(zip(*side, strict=True)) if torch.allclose(*pair)] for side in sides]


def test_answers_about_what_stays_right():
    """An answer of 02 or 04 promises keys or values that another model, or another text, does not have."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 24, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 20}
    config = kvlearn.DecoderConfig(vocab_size=50, num_layers=3, **sizes)
    decoder = kvlearn.Decoder(config).double().requires_grad_(False)
    text = torch.randint(50, (1, 9))
    before = keys_and_values(decoder, text)

    for layer, stay in ((2, [0, 1, 2]), (0, [0])):  # "trains the MLP of the last layer", "of layer 0"
        weight = decoder.layers[layer].mlp.up_proj.weight
        weight += 0.1
        assert unchanged(before, keys_and_values(decoder, text)) == [stay, stay]
        weight -= 0.1

    longer = torch.cat((torch.tensor([[42]]), text), dim=1)  # "one token more in front"
    moved = [[x[:, :, 1:] for x in side] for side in keys_and_values(decoder, longer)]
    assert unchanged(before, moved) == [[], [0]]
