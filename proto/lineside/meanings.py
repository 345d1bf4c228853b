"""Reads from a struct's source what each field means: the string that stands below it."""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache


def field_docs(kind: type) -> dict[str, str]:
    """Return the string below each field of a class; inherited fields have none here."""
    body = _classes(kind.__module__)[kind.__name__]
    docs = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                docs[name] = " ".join(text.split())
    return docs


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Return a module's classes by name. Kept, since the source of a module does not change."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
