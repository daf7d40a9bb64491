"""Small random changes to an answer's source: wrong answers that nobody thought of."""

import ast
import copy
import random

SWAPPED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def mutants(source: str, how_many: int, seed: int = 0) -> list[str]:
    """Up to `how_many` different sources, each with one thing changed."""
    tree = ast.parse(source)
    original = ast.unparse(tree)
    found = {}
    for position, node in enumerate(ast.walk(tree)):
        for change in range(len(list(changes(node)))):
            mutated = copy.deepcopy(tree)
            target = list(ast.walk(mutated))[position]
            list(changes(target))[change]()
            try:
                text = ast.unparse(ast.fix_missing_locations(mutated))
            except Exception:
                continue
            if text != original:
                found[text] = None
    found = list(found)
    return random.Random(seed).sample(found, min(how_many, len(found)))


def changes(node):
    """Functions that each change this node in one way."""
    if isinstance(node, ast.BinOp):
        if type(node.op) in SWAPPED:
            yield lambda: setattr(node, "op", SWAPPED[type(node.op)]())
        yield lambda: (lambda a, b: (setattr(node, "left", b), setattr(node, "right", a)))(
            node.left, node.right
        )
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield lambda: node.ops.__setitem__(0, SWAPPED[type(node.ops[0])]())
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda: setattr(node, "value", node.value + 1)
        yield lambda: setattr(node, "value", node.value - 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda: setattr(node, "value", not node.value)
    if isinstance(node, ast.UnaryOp):
        yield lambda: setattr(node, "op", ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not())
    if isinstance(node, ast.Call):
        if len(node.args) > 1:
            yield lambda: node.args.reverse()
        if node.keywords:
            yield lambda: node.keywords.pop()
    if isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1:
        yield lambda: node.elts.reverse()
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        yield lambda: setattr(node, "attr", "data")  # the same tensor, not transposed
    if hasattr(node, "body") and isinstance(node.body, list):
        for i, statement in enumerate(node.body):
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
                yield lambda i=i: node.body.__setitem__(i, ast.Pass())
