"""What a settings struct says of itself: settings, their types in words, which are secret. Pure.

A field's annotation carries its bounds (`msgspec.Meta`): `title` says what a text must look like,
`extra` marks a `secret` (never shown) or a field without a variable (`variable: False`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import Meta, inspect

Path: TypeAlias = tuple[str | int, ...]
"""From the document to a value: names of settings, and places in lists."""

MASK = "***"

_PORT = r"0*(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]?\d{1,4})\Z"

Listen: TypeAlias = Annotated[
    str, Meta(pattern=rf"^(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]*):{_PORT}", title="[HOST]:PORT")
]
"""Where to listen. No host: every interface; port 0: any free one."""

Address: TypeAlias = Annotated[
    str, Meta(pattern=rf"^(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):(?!0+\Z){_PORT}", title="HOST:PORT")
]
"""Where somebody listens."""

Secret: TypeAlias = Annotated[str, Meta(extra={"secret": True})]

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]

FilePath: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]


@dataclass(frozen=True, slots=True)
class Setting:
    """One field, or one field of a nested struct."""

    path: tuple[str, ...]
    type: Any
    required: bool
    default: object

    @property
    def name(self) -> str:
        """As documents nest it: `timeouts.idle_s`."""
        return ".".join(self.path)

    @property
    def variable(self) -> str | None:
        """The environment variable that overrides it, where there is one."""
        if not self.is_plain or extra(self.type).get("variable") is False:
            return None
        return "LINESIDE_" + "_".join(self.path).upper()

    @property
    def flag(self) -> str | None:
        """The option that overrides it: none for secrets, which other users' `ps` would show."""
        if not self.is_plain or self.is_secret:
            return None
        return "--" + "-".join(self.path).replace("_", "-")

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown."""
        return bool(extra(self.type).get("secret"))

    @property
    def is_plain(self) -> bool:
        """Whether a line of text can say it: a value, or a list of values."""
        return item_struct(self.type) is None


def settings_of(kind: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield every setting of a struct, those of nested structs in place."""
    for field in msgspec.structs.fields(kind):
        inner = nested(field.type)
        if inner is not None:
            yield from settings_of(inner, (*path, field.name))
        else:
            yield Setting((*path, field.name), field.type, field.required, field.default)


def describe(kind: Any, noun: str = "setting") -> str:
    """Say in words what a value of this type must be: `a whole number from 1 to 64`.

    `noun` is what the fields of a struct are called.
    """
    return _describe(inspect.type_info(kind), noun)


def nested(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a field is, if it is one."""
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def item_type(kind: Any) -> Any | None:
    """Return the type of a list's entries, with its bounds; `None`: no list."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def unwrapped(kind: Any) -> Any:
    """Return what a field is when it is said: the type without `| None`."""
    if get_origin(kind) is Annotated:
        base, *metas = get_args(kind)
        inner = unwrapped(base)
        return kind if inner is base else Annotated[(inner, *metas)]
    if get_origin(kind) in (Union, UnionType):
        some = tuple(part for part in get_args(kind) if part is not NoneType)
        return Union[some] if len(some) < len(get_args(kind)) else kind  # noqa: UP007
    return kind


def value_type(kind: Any) -> tuple[Any, Any] | None:
    """Return the types of a mapping's names and values; `None`: no mapping."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    is_mapping = get_origin(kind) in (dict, Mapping)
    return (get_args(kind)[0], get_args(kind)[1]) if is_mapping else None


def item_struct(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a list's entries are, if they are one."""
    return nested(item_type(kind))


def extra(kind: Any) -> dict[str, Any]:
    """Return what an annotation is marked with, at any level of `... | None`."""
    if get_origin(kind) is Annotated:
        base, *metas = get_args(kind)
        marks = [meta.extra for meta in metas if isinstance(meta, Meta) and meta.extra]
        return {key: value for mark in (extra(base), *marks) for key, value in mark.items()}
    if get_origin(kind) in (Union, UnionType):
        return {key: value for part in get_args(kind) for key, value in extra(part).items()}
    return {}


def shown(settings: msgspec.Struct) -> dict[str, Any]:
    """Return settings for people, secrets masked."""
    document: dict[str, Any] = msgspec.to_builtins(settings)
    for setting in settings_of(type(settings)):
        if setting.is_secret:
            *outer, name = setting.path
            inner = document
            for step in outer:
                inner = inner[step]
            if inner[name]:
                inner[name] = MASK
    return document


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of a `Listen` or an `Address`; brackets are dropped."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def bound(address: str) -> str:
    """Return a `Listen` in gRPC's words, which has none for every interface but `[::]`."""
    return f"[::]{address}" if address.startswith(":") else address


def _describe(info: inspect.Type, noun: str) -> str:
    match info:
        case inspect.Metadata(type=inner, extra_json_schema=schema):
            return str((schema or {}).get("title") or _describe(inner, noun))
        case inspect.UnionType(types=types):
            said = [each for each in types if not isinstance(each, inspect.NoneType)]
            words = " or ".join(_describe(each, noun) for each in said)
            return words + (", or null" if len(said) < len(types) else "")
        case inspect.LiteralType(values=values):
            return _one_of(values)
        case inspect.EnumType(cls=cls):
            return _one_of([member.value for member in cls])
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            count = "; at least one" * bool(least)
            count = f"; from {least or 0} to {most} of them" if most else count
            return f"a list, each entry {_describe(item, noun)}{count}"
        case inspect.DictType(value_type=value):
            return f"a mapping of names, each to {_describe(value, noun)}"
        case inspect.IntType():
            return "a whole number" + _bounds(info)
        case inspect.FloatType():
            return "a number" + _bounds(info)
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(min_length=least, max_length=most):
            return f"text of {least or 0} to {most} characters" if most else "text"
        case inspect.StructType():
            return f"a mapping of {noun}s"
        case inspect.AnyType():
            return "a value that JSON has"
        case _:
            raise TypeError(f"settings cannot be of type {info}")


def _one_of(values: Iterable[object]) -> str:
    words = [f"`{value}`" for value in values]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.gt is not None:
        upper = f", at most {_number(info.le)}" if info.le is not None else ""
        return f" above {_number(info.gt)}{upper}"
    lower = f" from {_number(info.ge)}" if info.ge is not None else ""
    return lower + (f" to {_number(info.le)}" if info.le is not None else "")


def _number(value: float | None) -> str:
    return f"{value:.15g}"
