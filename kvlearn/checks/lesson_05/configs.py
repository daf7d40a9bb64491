"""read_sizes: what a config.json says of its cache."""

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_05.amounts import pick
from kvlearn.sizing import ModelShape


def read_sizes(config):
    """Oracle: the library's reader, which is held to transformers' own classes."""
    shape = ModelShape.from_config(config)
    return shape.num_layers, shape.num_kv_heads, shape.head_dim


def _cases(generator):
    heads, kv_heads = pick(generator, [(24, 8), (28, 4), (40, 10), (48, 16)])
    layers = pick(generator, [18, 26, 30, 36])
    width = pick(generator, [48, 80, 112])  # of a head, where hidden_size is shared out
    plain = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": heads * width}
    grouped = {**plain, "num_key_value_heads": kv_heads}
    return [
        Case({"config": grouped}, "a plain config"),
        Case({"config": {**grouped, "head_dim": 128}}, "one that says head_dim"),
        Case({"config": {**grouped, "head_dim": None, "sliding_window": None}}, "head_dim null"),
        Case({"config": plain}, "no num_key_value_heads"),
        Case({"config": {**plain, "num_key_value_heads": None, "head_dim": 256}}, "num_key_value_heads null"),
        Case({"config": {"hidden_size": 7, "num_key_value_heads": 3, "text_config": {
                         **plain, "num_key_value_heads": None, "head_dim": None}}}, "nulls in a text_config"),
        Case({"config": {"model_type": "some_vlm", "vision_config": {"num_hidden_layers": 7},
                         "text_config": {**grouped, "head_dim": 64}}}, "a nested text_config"),
    ]  # fmt: skip


def _text(config):
    return config.get("text_config", config)


def _read(config, kv_heads=None, head_dim=None):
    """The right reading, with one part exchanged."""
    c = _text(config)
    heads = c["num_attention_heads"]
    own = c.get("num_key_value_heads") or heads
    width = c.get("head_dim") or c["hidden_size"] // heads
    return (
        c["num_hidden_layers"],
        kv_heads(c, own) if kv_heads else own,
        head_dim(c, own) if head_dim else width,
    )


def _with_get(c):
    heads = c["num_attention_heads"]
    width = c.get("head_dim", c["hidden_size"] // heads)
    return c["num_hidden_layers"], c.get("num_key_value_heads", heads), width


MISCONCEPTIONS = (
    Misconception(
        "head_dim was worked out from the hidden size even where the config says it",
        lambda config: _read(config, head_dim=lambda c, own: c["hidden_size"] // c["num_attention_heads"]),
        "head_dim is a field of its own. In Gemma 3, Qwen3-0.6B and gpt-oss it is not hidden_size over the "
        "number of heads, so the division is only for configs that leave it out.",
    ),
    Misconception(
        "the query heads were taken for the key/value heads",
        lambda config: _read(config, kv_heads=lambda c, own: c["num_attention_heads"]),
        "num_attention_heads counts the heads that ask. The cache holds what the key/value heads give, "
        "and where "
        "heads are grouped there are fewer of those.",
    ),
    Misconception(
        "the hidden size was shared out over the key/value heads",
        lambda config: _read(config, head_dim=lambda c, own: c.get("head_dim") or c["hidden_size"] // own),
        "A key/value head is as wide as a query head. The hidden size is shared out over the query "
        "heads, where "
        "it is shared out at all.",
    ),
    Misconception(
        "the number of query heads in a group was given for the number of key/value heads",
        lambda config: _read(config, kv_heads=lambda c, own: c["num_attention_heads"] // own),
        "num_key_value_heads = 8 means that 8 heads are stored. How many query heads share one of them "
        "is another "
        "number: heads over key/value heads.",
    ),
    Misconception(
        "a field that is null was handed on as None",
        lambda config: _with_get(_text(config)),
        "A default for a missing key does not help where the key is there and holds null. Both mean "
        "that the "
        "config does not say.",
    ),
    Misconception(
        "the text_config inside was not looked into",
        lambda config: _read({k: v for k, v in config.items() if k != "text_config"}),
        "A model that also sees pictures keeps its language model's sizes one level down, under "
        "text_config.",
        raises=True,
    ),
)  # fmt: skip

READ_SIZES = Exercise(
    name="read_sizes",
    lesson=5,
    title="What the config says",
    minutes=15,
    difficulty=2,
    why="Every size of a cache begins with three numbers from a config.json, and real files say them "
    "in several "
    "ways. A wrong head_dim looks as good as a right one.",
    signature="read_sizes(config)",
    reference=read_sizes,
    cases=_cases,
    items=("num_layers", "num_kv_heads", "head_dim"),
    misconceptions=MISCONCEPTIONS,
    hints=(
        "First find the dictionary that has num_hidden_layers in it. Then take the three numbers one by one.",
        "config.get(name) gives None for a key that is missing and for one that is null, so one "
        "question covers both.",
        "Of what width are the query heads when head_dim is not said? All of them together are as wide "
        "as the "
        "hidden size.",
    ),
)
EXERCISES = (READ_SIZES,)
