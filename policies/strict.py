"""The strict struct, and values that several kinds of resource hold. Types only."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from policies.words import Name

Labels: TypeAlias = Mapping[Name, Annotated[str, Meta(max_length=253)]]
Number: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Unshown = Meta(extra={"secret": True})
"""Marks what may hold a secret: findings do not repeat it."""


class Strict(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
):
    """A mapping of which every field is known."""
