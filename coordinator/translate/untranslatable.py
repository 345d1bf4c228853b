"""The one exception of this package, and how untyped JSON becomes typed, or raises it. Pure."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class Untranslatable(Exception):
    """A body that the other API cannot carry without loss. Repeats nothing of the content."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.message = message
        """One sentence that says what to do."""
        self.param = param
        """The path of the field, as in `messages[0].content[1]`."""


def cannot_carry(param: str, instead: str = "leave it out") -> Untranslatable:
    """Return the error for a field that has no counterpart."""
    return Untranslatable(
        f"`{param}` cannot be carried to a backend of another API; {instead}", param
    )


def typed(body: Mapping[str, Any], type_: type[T]) -> T:
    """Return a body in the form that translation works on. Raises `Untranslatable` with a path."""
    try:
        return msgspec.convert({k: _whole(k, v) for k, v in body.items()}, type_)
    except msgspec.ValidationError as error:
        found = _PLACE.search(str(error))
        param = found[1] if found else None
        place = f"`{param}`" if param else "the body"
        raise Untranslatable(
            f"{place} has a form or a value that cannot be carried to a backend of another API",
            param,
        ) from None


_WHOLE = frozenset(
    {"max_tokens", "max_completion_tokens", "max_output_tokens", "top_k", "thinking_token_budget"}
)


def _whole(name: str, value: Any) -> Any:
    """Return a field that is a whole number as one: some clients send 16.0."""
    is_whole = name in _WHOLE and isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def unknown_fields(body: Mapping[str, Any], known: frozenset[str], dropped: frozenset[str]) -> None:
    """Raise `Untranslatable` for a field that is neither understood nor knowingly left out."""
    for name, value in body.items():
        if name not in known and name not in dropped and value is not None:
            raise cannot_carry(name[:64] if name.isprintable() else "a field")


_PLACE = re.compile(r"at `\$\.?([^`]+)`$")
