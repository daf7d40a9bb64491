"""Is the answer something that can be called as the exercise calls it?"""

import ast
import inspect

from kvlearn.checks.compare import is_tensor
from kvlearn.checks.explain import kind_of


def call_function(answer, case):
    """The default `observe`: call the answer with the inputs in the signature's order."""
    return answer(*case.inputs.values())


def returned_nothing(value) -> bool:
    """None or `...`, alone or as every item of what an exercise's scenario collected."""
    if isinstance(value, dict):
        value = list(value.values())
    if type(value) in (list, tuple) and value:
        return all(returned_nothing(item) for item in value)
    return value is None or value is ...


def parameters(signature: str) -> tuple[list[str], list[str]]:
    """Names of the required and of the optional parameters of `f(a, b, c=1)`."""
    arguments = ast.parse(f"def {signature}: pass").body[0].args
    names = [argument.arg for argument in arguments.args]
    required = len(names) - len(arguments.defaults)
    keywords = [argument.arg for argument in arguments.kwonlyargs]
    return names[:required], names[required:] + keywords


def explain_unusable(exercise, answer) -> str | None:
    """A sentence if `answer` is not a function (or class) with the right parameters."""
    name = exercise.name
    if exercise.kind == "class":
        if not isinstance(answer, type):
            example = f"kvlearn.check({name!r}, MyClass)"
            return f"A class is wanted, without brackets: {example}. This is {_noun(answer)}."
        missing = [m for m in exercise.methods if not callable(getattr(answer, m, None))]
        if missing:
            return f"The class {answer.__name__} has no method {' and no '.join(missing)}."
    elif isinstance(answer, type):
        return f"A function is wanted: {exercise.signature}. This is the class {answer.__name__}."
    elif not callable(answer):
        called = " Pass the function itself, without calling it." if is_tensor(answer) else ""
        return f"A function is wanted: {exercise.signature}. This is {_noun(answer)}.{called}"
    return _explain_parameters(exercise, answer)


def _noun(answer) -> str:
    return f"an instance of {type(answer).__name__}" if _is_instance(answer) else kind_of(answer)


def _is_instance(answer) -> bool:
    builtin = type(answer).__module__ in ("builtins", "numpy")
    return not (builtin or is_tensor(answer))


def _explain_parameters(exercise, answer) -> str | None:
    """Too few, too many, or the same names in another order."""
    try:
        signature = inspect.signature(answer)
    except Exception:  # builtins have none, and a __signature__ may be anything: calling it will tell
        return None
    required, optional = parameters(exercise.signature)
    own = [
        p.name
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    try:
        signature.bind(*required)
        # Whatever the exercise passes by position may be all of its parameters; a class is given its
        # optional ones by name.
        if exercise.kind == "function":
            signature.bind(*required, *optional)
        else:
            signature.bind(*required, **dict.fromkeys(optional))
        fits = True
    except TypeError:
        fits = False
    expected = [*required, *optional]
    reordered = sorted(own) == sorted(expected) and own != expected
    if fits and not reordered:
        return None
    return (
        f"The parameters differ: it is called as {exercise.signature}, and yours takes "
        f"{_shown(signature)}. Names and order should be those of the answer cell."
    )


def _shown(signature) -> str:
    text = str(signature.replace(return_annotation=inspect.Signature.empty))
    return text if len(text) <= 100 else text[:97] + "..."
