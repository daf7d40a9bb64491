"""Interactive figures: thin wiring of ipywidgets around `kvlearn.figures`.

Each function returns a `Panel`: controls, and the picture that they choose with its caption. The picture is
an `HTML` widget around PNG bytes: unlike the `Image` widget it carries alt text. A static figure belongs
beside each panel, because pages that are not connected to a kernel show no widgets.
"""

from collections.abc import Callable, Sequence

try:
    import ipywidgets
except ImportError as error:
    raise ImportError(
        "kvlearn.widgets needs ipywidgets, which is not installed. Install the notebooks extra: run "
        '`pip install -e ".[notebooks]"` in the folder of the course. The same pictures without controls are '
        "in kvlearn.figures."
    ) from error

from kvlearn import figures, sizing
from kvlearn.figures.style import Picture


class Panel(ipywidgets.VBox):
    """Controls over a picture. `controls` are the widgets by name; `picture` is what is shown now."""

    def __init__(self, name: str, controls: dict, draw: Callable[..., Picture], extra: Sequence = ()):
        self.name, self.controls, self.picture = name, controls, None
        self._draw, self._drawn = draw, {}
        self.view = ipywidgets.HTML()
        row = ipywidgets.HBox([*controls.values(), *extra], layout={"flex_flow": "row wrap"})
        super().__init__([row, self.view])
        for control in controls.values():
            control.observe(self._update, names="value")
        self._update()

    def __repr__(self):
        # What front ends without widgets show, and nothing in it that changes from run to run.
        return f"Interactive: {self.name}. Run this cell in JupyterLab to use it."

    def _update(self, _change=None):
        chosen = {name: control.value for name, control in self.controls.items()}
        key = tuple(chosen.values())
        if key not in self._drawn:
            picture = self._draw(**chosen)
            self._drawn[key] = (picture, picture.html())
        self.picture, self.view.value = self._drawn[key]


def stepper(
    frames: int | Sequence, draw: Callable[..., Picture], *, name: str = "step through the frames"
) -> Panel:
    """Step through frames: a slider, back and forth buttons, and play.

    Args:
        frames: a list of what to draw, or how many frames.
        draw: draw(frame) -> picture; the frame is an item of the list, or its number.
        name: what the panel is, in words.
    """
    items = list(range(frames)) if isinstance(frames, int) else list(frames)
    if not items:
        raise ValueError("There is no frame to step through: `frames` is empty.")
    last = len(items) - 1
    slider = ipywidgets.IntSlider(value=0, min=0, max=last, description="step", continuous_update=False)
    play = ipywidgets.Play(value=0, min=0, max=last, interval=900)
    ipywidgets.jslink((play, "value"), (slider, "value"))
    back = ipywidgets.Button(icon="step-backward", tooltip="one step back", layout={"width": "40px"})
    forth = ipywidgets.Button(icon="step-forward", tooltip="one step on", layout={"width": "40px"})

    def move(by):
        slider.value = min(max(slider.value + by, 0), last)

    back.on_click(lambda _: move(-1))
    forth.on_click(lambda _: move(1))
    panel = Panel(name, {"step": slider}, lambda step: draw(items[step]), extra=(back, forth, play))
    panel.back, panel.forth, panel.play = back, forth, play
    return panel


def cache_stepper(runs: dict, tokens=None) -> Panel:
    """Step through the tables of K and V of recorded runs: see `kvlearn.figures.cache_frame`.

    Args:
        runs: {"naive": steps, "cached": steps}, from `kvlearn.measure.trace_cache`.
        tokens: a label for each position.
    """
    count = max(len(steps) for steps in runs.values())
    return stepper(
        count,
        lambda step: figures.cache_frame(runs, step, tokens),
        name="the tables of K and V, step by step",
    )


def mask_explorer(query_length: int = 3, key_length: int = 6, most: int = 12) -> Panel:
    """Choose how many queries and keys: the causal mask, and what torch's `is_causal=True` would give."""
    queries = ipywidgets.IntSlider(
        query_length, min=1, max=most, description="queries", continuous_update=False
    )
    keys = ipywidgets.IntSlider(key_length, min=1, max=most, description="keys", continuous_update=False)

    def draw(query_length, key_length):
        # The queries are the last of the keys, so there are at most as many.
        return figures.mask_compare(min(query_length, key_length), key_length)

    return Panel("causal masks", {"query_length": queries, "key_length": keys}, draw)


def attention_explorer(weights, tokens=None, *, mask=None) -> Panel:
    """Choose a layer and a head of a model's attention weights.

    Args:
        weights: (layers, H, L, S), or a list of (H, L, S), one for each layer.
        tokens: L labels.
        mask: (L, S) booleans, True = may attend.
    """
    layers, heads = len(weights), weights[0].shape[0]
    layer = ipywidgets.IntSlider(0, min=0, max=layers - 1, description="layer", continuous_update=False)
    head = ipywidgets.IntSlider(0, min=0, max=heads - 1, description="head", continuous_update=False)

    def draw(layer, head):
        return figures.attention_map(
            weights[layer][head], tokens, mask=mask, title=f"Layer {layer}, head {head}"
        )

    return Panel("attention weights by layer and head", {"layer": layer, "head": head}, draw)


def head_explorer(num_heads: int = 9, num_kv_heads: int = 3) -> Panel:
    """Choose how many key/value heads the query heads share."""
    divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
    choice = ipywidgets.SelectionSlider(
        options=divisors, value=num_kv_heads, description="K/V heads", continuous_update=False
    )
    return Panel(
        "query heads and key/value heads",
        {"kv_heads": choice},
        lambda kv_heads: figures.heads_diagram(num_heads, kv_heads),
    )


def memory_planner(
    model: str = "llama-3.1-8b", context: int = 8192, batch: int = 8, gpu: str = "h100"
) -> Panel:
    """Choose a model, how it is served, and a card: weights and cache stacked against its memory."""

    def choose(options, value, description):
        return ipywidgets.Dropdown(options=options, value=value, description=description)

    known = [name for name in sizing.models() if sizing.model(name).parameters is not None]
    controls = {
        "model": choose(known, model, "model"),
        "context": ipywidgets.SelectionSlider(
            options=[(f"{n:,}", n) for n in (2**power for power in range(9, 21))],
            value=context, description="context", continuous_update=False,
        ),
        "batch": ipywidgets.IntSlider(batch, 1, 256, description="batch", continuous_update=False),
        "cache": choose(list(sizing.CACHE_TYPES), "bf16", "cache"),
        "weights": choose(["bf16", "fp8", "int8", "int4"], "bf16", "weights"),
        "gpu": choose(list(sizing.gpus()), gpu, "card"),
    }  # fmt: skip
    return Panel("weights and cache against a card's memory", controls, _planned)


def _planned(model, context, batch, cache, weights, gpu) -> Picture:
    """The picture of `memory_planner`: one sequence, the batch, and the largest batch that fits."""
    shape, memory = sizing.model(model), sizing.gpu(gpu)
    weight = sizing.weight_bytes(shape, weights)
    try:
        most = sizing.max_batch(shape, context, memory, cache, weights)
        sizes = {rows: sizing.cache_bytes(shape, context, rows, cache) for rows in {1, batch, max(most, 1)}}
    except ValueError as error:  # a group that does not divide this model's heads
        picture = figures.memory_stack({"weights alone": {"weights": weight}}, memory, limit_name=gpu)
        picture.caption = str(error)
        return picture
    bars = {f"batch {rows:,}": {"weights": weight, "cache": sizes[rows]} for rows in sorted(sizes)}
    picture = figures.memory_stack(bars, memory, limit_name=gpu)
    fits = f"At most {most:,} sequences of {context:,} tokens fit" if most else "Not even one sequence fits"
    own = shape.max_position
    if own is not None and context > own:
        fits += f", and the model itself goes to {own:,} tokens"
    picture.caption = f"{model}, {shape.kind}. {fits}."
    return picture
