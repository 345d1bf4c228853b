"""JSON that somebody else wrote: read, or refused in one way."""

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


def decoded(body: bytes | str, type: type[T], *, strict: bool = True) -> T:
    """Read JSON. Raises `msgspec.MsgspecError`, of what is nested too deep as well."""
    try:
        return msgspec.json.decode(body, type=type, strict=strict)
    except RecursionError:
        raise msgspec.DecodeError("nested too deep") from None


class Reader(Generic[T]):
    """Reads many documents of one kind, made ready once."""

    def __init__(self, type: type[T]) -> None:
        self._decode = msgspec.json.Decoder(type).decode

    def decode(self, body: bytes | str) -> T:
        """Read JSON, as `decoded` does."""
        try:
            return self._decode(body)
        except RecursionError:
            raise msgspec.DecodeError("nested too deep") from None
