"""Reads from a struct's source what each field means: the string that stands below it."""

import ast
import inspect


def field_docs(kind: type) -> dict[str, str]:
    """Return the string below each field of a class; inherited fields have none here."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                docs[name] = " ".join(text.split())
    return docs
