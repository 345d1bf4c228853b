"""Semantic tags of a request: the seam, and the taggers that look at no text.

A tag is present, absent or unknown; one that no tagger knows is unknown, and what policies guard by
it stays guarded.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from coordinator.canonical import Canonical
from policies.facts import Truth


class Tagger(Protocol):
    """Looks at a request."""

    async def tags(self, request: Canonical) -> Mapping[str, Truth]:
        """Return the result for each tag that this tagger knows. Never raises for any text."""
        ...


class GivenTags:
    """The same tags for every request, and those that a trusted gateway says of each."""

    def __init__(self, tags: Sequence[str] = (), header: str | None = None) -> None:
        """`tags` are `NAME` (present) or `NAME=present|absent|unknown`.

        `header` names the header that carries such a list; whoever is in front of this gateway must
        remove the one that clients send.
        """
        self._tags = parse_tags(tags)
        self._header = header.lower() if header else None

    async def tags(self, request: Canonical) -> Mapping[str, Truth]:
        if self._header is None:
            return self._tags
        said = parse_tags(request.headers.get(self._header, "").split(",")[:TAGS])
        names = self._tags.keys() | said.keys()
        return {name: _strictest(self._tags.get(name), said.get(name)) for name in names}


TAGS = 64
"""Tags that one header may name."""

TAG_CHARS = 253


def parse_tags(words: Sequence[str]) -> dict[str, Truth]:
    """Read a list of tags. What is no tag is left out; a state that is none counts as unknown.

    Of what contradicts itself the strictest counts: present, then unknown, then absent.
    """
    tags: dict[str, Truth] = {}
    for word in words:
        name, _, state = (part.strip() for part in word.partition("="))
        if 0 < len(name) <= TAG_CHARS:
            said = _STATES.get(state or "present", Truth.UNKNOWN)
            tags[name] = _strictest(tags.get(name), said)
    return tags


def _strictest(one: Truth | None, other: Truth | None) -> Truth:
    said = {one, other}
    return next(truth for truth in (Truth.TRUE, Truth.UNKNOWN, Truth.FALSE) if truth in said)


_STATES = {truth.value: truth for truth in Truth}
