"""Semantic tags of a request. The seam, and the implementation without any tags."""

from collections.abc import Mapping
from typing import Protocol

from coordinator.canonical import Canonical


class Tagger(Protocol):
    """Looks at a request's text. Results are `present`, `absent` or `unknown`."""

    async def tags(self, request: Canonical) -> Mapping[str, str]:
        """Return the result for each tag that this tagger knows. Never raises for any text."""
        ...


class NoTags:
    """Knows no tags."""

    async def tags(self, request: Canonical) -> Mapping[str, str]:
        return {}
