"""JSON that somebody else wrote: read, or refused in one way."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(body: bytes | str, type: type[T], *, strict: bool = True) -> T:
    """Read JSON. Raises `msgspec.MsgspecError`, of what is nested too deep as well."""
    try:
        return msgspec.json.decode(body, type=type, strict=strict)
    except RecursionError:
        raise msgspec.DecodeError("nested too deep") from None
