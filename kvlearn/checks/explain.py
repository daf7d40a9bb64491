"""Say in a few plain sentences what is wrong with an answer.

Each function takes facts and returns text. No text here shows how to solve anything: it
names the place, the value there and the value expected.
"""

import math
import os
import re
import sysconfig
import traceback

import torch

from kvlearn.checks.compare import Difference, is_tensor

_LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in {
        sysconfig.get_paths()["stdlib"],
        sysconfig.get_paths()["purelib"],
        sysconfig.get_paths()["platlib"],
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(__file__)),  # kvlearn itself
    }
)


def describe_inputs(inputs: dict) -> str:
    """`x (2, 5, 12) float32, num_heads 3`: names, shapes, dtypes, small values."""
    return ", ".join(f"{name} {_describe(value)}" for name, value in inputs.items())


def _describe(value) -> str:
    if is_tensor(value):
        return f"{tuple(value.shape)} {short(value.dtype)}"
    if type(value) in (list, tuple) and any(is_tensor(item) for item in value):
        return f"{len(value)} tensors"
    if callable(value) and not isinstance(value, torch.nn.Module):
        return f"= {getattr(value, '__name__', type(value).__name__)}"
    if isinstance(value, int | float | str | bool | None | list | tuple | dict):
        text, most = repr(value), 240 if isinstance(value, dict) else 60
        return text if len(text) <= most else text[: most - 3] + "..."
    return f"= a {type(value).__name__}"


def short(value) -> str:
    """`float32` for torch.float32; floats with four significant digits, endless integers with none."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if type(value) is float:
        return f"{value:.4g}"
    if isinstance(value, int) and value.bit_length() > 200:  # Python refuses to write thousands of digits
        return f"a number of about {round(value.bit_length() * math.log10(2)):,} digits"
    return str(value)


def apart(one, other) -> tuple[str, str]:
    """Two different numbers as texts: as `short` shows them, with more digits where they would look alike."""
    texts = short(one), short(other)
    if type(one) is float and type(other) is float:
        for digits in (6, 9, 12, 17):
            if texts[0] != texts[1]:
                break
            texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
    return texts


def kind_of(value) -> str:
    """A noun with its article for whatever an answer may give."""
    if value is None:
        return "None (is a `return` missing?)"
    if value is ...:
        return "`...`"
    if is_tensor(value):
        return f"a tensor of shape {tuple(value.shape)}"
    module, name = type(value).__module__, type(value).__name__
    if module == "numpy":
        return "a numpy array" if name == "ndarray" else f"a numpy {name}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and type(getattr(value, "__name__", None)) is str:
        return f"the function {value.__name__}"
    return _NOUNS.get(name, f"an object of type {name}")


_NOUNS = {
    "str": "a string",
    "bool": "a bool",
    "int": "an int",
    "float": "a float",
    "tuple": "a tuple",
    "list": "a list",
    "dict": "a dict",
    "set": "a set",
    "generator": "a generator (`yield` instead of `return`?)",
    "coroutine": "a coroutine (`async def` instead of `def`?)",
}


def place(difference: Difference, axes: dict) -> str:
    """`keys, batch 0, head 1`: the path and the index in the axes' names."""
    parts = [f"{key} " if isinstance(key, str) else f"item {key} " for key in _shown_path(difference)]
    named = axis_names(difference.path, len(difference.index), axes)
    parts += [f"{name} {i}" for name, i in zip(named, difference.index, strict=True)]
    return ", ".join(part.strip() for part in parts)


def axis_names(path, ndim: int, axes: dict) -> list[str]:
    """The declared names for the result at `path`, or `axis 0`, `axis 1` ... ."""
    keys = [key for key in path if isinstance(key, str) and key in axes]
    names = axes.get(keys[-1] if keys else "return", "").split()
    return names if len(names) == ndim else [f"axis {i} index" for i in range(ndim)]


def explain_difference(difference: Difference, axes: dict, inputs: dict) -> str:
    """One sentence about the first place where an answer differs. `inputs` are those that it was given."""
    got, want = difference.got, difference.want
    inside = place_of_path(difference)
    what = f"The result's {inside}" if inside else "The result"
    if difference.kind == "type":
        return _explain_type(what, got, want)
    if difference.kind == "length":
        return f"{what} has {got} item{'' if got == 1 else 's'}; expected {want}."
    if difference.kind == "keys":
        return f"{what} has the keys {got}; expected {want}."
    if difference.kind == "layout":
        return f"{what} is a tensor with layout {short(got)}; expected an ordinary dense one."
    if difference.kind == "shape":
        names = axis_names(difference.path, len(want), axes)
        legend = "" if "index" in " ".join(names) else f" = ({', '.join(names)})"
        return f"{what} has shape {got}; expected {want}{legend}."
    if difference.kind == "dtype":
        same = [name for name, value in inputs.items() if is_tensor(value) and value.dtype == want]
        as_input = f", as {same[0]} has" if same else ""
        return f"{what} has dtype {short(got)}; expected {short(want)}{as_input}."
    if difference.kind == "device":
        return f"{what} is on device {got}; expected {want}, where the inputs are."
    where = place(difference, axes)
    count = f" ({difference.wrong} of {difference.total} values differ)"
    if type(got) is float and 0 < abs(got - want) < 1e-5 * max(abs(want), 1e-30):
        digits = int(-math.log10(abs(got - want) / abs(want)))
        return (
            f"The numbers agree to about {digits} digits only, at {where}{count}: "
            "is something computed with less precision than the inputs have, such as float32 in float64? "
            "(A tensor made of a Python number is float32 unless you say otherwise. A small number that is "
            "added somewhere does it too.)"
        )
    wanted, given = apart(want, got)
    return (
        f"First difference{' at ' if where else ''}{where}: "
        f"expected {wanted}, got {given}{count if difference.total > 1 else ''}."
    )


def place_of_path(difference: Difference) -> str:
    return ", ".join(k if isinstance(k, str) else f"item {k}" for k in _shown_path(difference))


def _shown_path(difference: Difference) -> tuple:
    """Without the key "return", by which an observation that is a dict calls the answer's own result."""
    return difference.path[1:] if difference.path[:1] == ("return",) else difference.path


def _explain_type(what, got, want):
    if is_tensor(want):
        wanted, advice = "a torch tensor", ""
    elif type(want) is int:
        wanted = "a whole number (int)"
        advice = " Is there a / where // is meant?" if type(got) is float else ""
    elif isinstance(want, list | tuple):
        wanted = f"a {type(want).__name__} of {len(want)} items"
        advice = " (.tolist() makes one of a tensor.)" if is_tensor(got) else ""
    else:
        wanted, advice = f"a {type(want).__name__}", ""
    if got is None and isinstance(want, dict | list):  # a scenario's observation, which nobody gives back
        return f"{what} is {kind_of(got)}."
    value = f" {got!r}" if type(got) in (float, bool) else f" {short(got)}" if type(got) is int else ""
    return f"{what} is {kind_of(got)}{value}; expected {wanted}.{advice}"


def explain_error(error: BaseException) -> str:
    """The learner's own error: its type, its text, and the line of their code."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(an error without readable text)"
    if len(text) > 240:
        text = text[:237] + "..."
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frame = learner_frame(error)
    if frame is None:
        return f"It failed outside your own lines, while the check used your answer: {said}"
    line = frame.line.strip() if frame.line else ""
    shown = f": {line[:117] + '...' if len(line) > 120 else line}" if line else ""
    about = ""
    if isinstance(error, RuntimeError) and _reverses_axes(error, line):
        about = "\n`.T` reverses all axes of a tensor, the batch and the heads too. Swap only the last two."
    return f"Your code raised {said}\n  in {frame.name}, line {frame.lineno}{shown}{about}"


def _reverses_axes(error: BaseException, line: str) -> bool:
    """Whether `line` takes the .T of a tensor with more than two axes; of a matrix it is right."""
    names = re.findall(r"\b(\w+)\.T\b", line)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = [frame.f_locals.get(name) for frame in frames for name in names]
    return any(is_tensor(value) and value.ndim > 2 for value in values)


def explain_too_long(error: BaseException, seconds: int) -> str:
    """Where in the learner's code the time was up."""
    frame = learner_frame(error)
    where = f"\n  in {frame.name}, line {frame.lineno}: {(frame.line or '').strip()[:120]}" if frame else ""
    return (
        f"Your code had not finished after {seconds} seconds, and was stopped. Is there a loop that "
        f"never ends?{where}"
    )


def learner_frame(error: BaseException):
    """The innermost frame that belongs to no library, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f
        for f in frames
        if not f.filename.startswith("<frozen") and not os.path.realpath(f.filename).startswith(_LIBRARIES)
    ]
    return own[-1] if own else None


def is_unwritten(error: BaseException) -> bool:
    """True for the `raise NotImplementedError` of an answer cell that nobody has filled.

    torch raises the same type for a missing kernel, always with a text of its own.
    """
    if not isinstance(error, NotImplementedError):
        return False
    frame = learner_frame(error)
    line = (frame.line or "").strip() if frame else ""
    return not error.args or line.startswith("raise NotImplementedError")
