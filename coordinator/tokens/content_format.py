"""Whether a chat template takes a message's content as text or as parts. Pure.

Told from the template's tree, in the same way as the engine does: a template that the engine reads
otherwise than this module would get other messages.
"""

from enum import Enum

from jinja2 import nodes


class ContentFormat(Enum):
    """What a template takes as a message's content."""

    STRING = "string"
    PARTS = "parts"


class _NoPlainName(Exception):
    """A loop or assignment binds something else than one name; the engine's detection gives up."""


def content_format(tree: nodes.Template) -> ContentFormat:
    """Return parts for a template that walks them."""
    try:
        return ContentFormat.PARTS if _walks_content(tree) else ContentFormat.STRING
    except _NoPlainName:
        return ContentFormat.STRING


def _walks_content(tree: nodes.Template) -> bool:
    messages = _aliases(tree, "messages")
    each = {_bound(loop.target) for loop in tree.find_all(nodes.For) if _reads(loop.iter, messages)}
    macros = list(tree.find_all(nodes.Macro))
    in_macros = {
        id(loop): _content_parameters(tree, macro, each)
        for macro in macros
        for loop in macro.find_all(nodes.For)
    }
    for loop in tree.find_all(nodes.For):
        parameters = in_macros.get(id(loop), {"content"})
        if _reads(loop.iter, each, "content") or (
            isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters
        ):
            return bool(_bound(loop.target))
    return False


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """Return the names that an assignment makes mean `name`, or a slice or filter of it."""
    found = {name}
    while True:
        more = {_bound(a.target) for a in tree.find_all(nodes.Assign) if _reads(a.node, found)}
        if more <= found:
            return found
        found |= more


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, each: set[str]) -> set[str]:
    """Return the macro's parameters that some call fills with a message's content."""
    names = [argument.name for argument in macro.args]
    found = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            positional = zip(names, call.args, strict=False)
            by_name = ((kw.key, kw.value) for kw in call.kwargs if kw.key in names)
            found |= {n for n, v in (*positional, *by_name) if _reads(v, each, "content")}
    return found


def _bound(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NoPlainName
    return target.name


def _reads(node: nodes.Node | None, names: set[str], key: str | None = None) -> bool:
    """Whether an expression is one of `names`, or its `key`, under filters, tests and slices."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        elif key is None:
            return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names
        elif isinstance(node, nodes.Getitem):
            is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
            return is_key and _reads_name(node.node, names)
        else:
            return (
                isinstance(node, nodes.Getattr)
                and node.attr == key
                and _reads_name(node.node, names)
            )


def _reads_name(node: nodes.Node, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names
