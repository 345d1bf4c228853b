"""JSON of an API server, which may be nested deeper than can be read. Pure.

Free parts of an object (a policy's parameters, a status) may be as deep as the server takes, ten
thousand; what one object holds must not keep the others of its list from being read.
"""

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")

MOST_DEEP = 200
"""What is deeper is cut off when all cannot be read. Below that `load` says what is too deep."""

_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def decoded(body: bytes, type: type[T]) -> T:
    """Read JSON. Raises `msgspec.MsgspecError`."""
    try:
        return msgspec.json.decode(body, type=type)
    except RecursionError:
        return msgspec.json.decode(_cut(body), type=type)


def _cut(body: bytes) -> bytes:
    """Return JSON with `null` for what is nested too deep."""
    kept: list[bytes] = []
    depth = taken_to = 0
    for part in _PARTS.finditer(body):
        match body[part.start() : part.start() + 1]:
            case b"[" | b"{":
                if depth == MOST_DEEP:
                    kept += (body[taken_to : part.start()], b"null")
                depth += 1
            case b"]" | b"}":
                depth -= 1
                if depth == MOST_DEEP:
                    taken_to = part.end()
    return b"".join((*kept, body[taken_to:])) if depth == 0 else b""
