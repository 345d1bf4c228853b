"""All parts of a resource with their paths, as documents write them. Pure."""

from collections.abc import Iterator

import msgspec

from lineside.schema import Path


def parts(value: object, path: Path = ()) -> Iterator[tuple[Path, msgspec.Struct]]:
    """Yield a struct and every struct below it, in the order of the fields."""
    if isinstance(value, tuple):
        for number, entry in enumerate(value):
            yield from parts(entry, (*path, number))
    elif isinstance(value, msgspec.Struct):
        yield path, value
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        for field, written in names:
            yield from parts(getattr(value, field), (*path, written))
