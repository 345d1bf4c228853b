"""What the doctor asks an API server through, and what comes back.

Whoever implements `Api` brings address and credentials; nothing here knows them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from cli.kube.shapes import Json, Shape, readable


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `body` is the JSON that it holds, else its text."""

    status: int
    body: Any = None
    at: tuple[float, float] = (0.0, 0.0)
    """Unix time here before and after: what a clock that it tells is compared with."""

    @property
    def said(self) -> dict[str, Any]:
        """What was asked for; empty: something else came, or nothing."""
        return self.body if self.status in (200, 201) and isinstance(self.body, dict) else {}

    @property
    def items(self) -> list[dict[str, Any]]:
        """The members of a list; empty: it is none."""
        listed = self.said.get("items")
        return listed if isinstance(listed, list) else []


class Unreachable(Exception):
    """The API server cannot be asked at all. Says why, without a credential."""


class Api(Protocol):
    """Asks one API server. Raises `Unreachable`; every answer, 403 as well, is an `Answer`."""

    async def get(self, path: str, query: Mapping[str, str] = {}) -> Answer:
        """Read a path."""
        ...

    async def review(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Post what creates nothing: an access review."""
        ...


@dataclass(frozen=True, slots=True)
class Blind:
    """Something that could not be looked at."""

    what: str
    verb: str
    """What to allow, as `kubectl auth can-i` takes it."""
    status: int
    odd: int = 0
    """How many objects were left out: they are not what such objects are."""
    is_cut: bool = False
    """There are more than are looked at."""


@dataclass(slots=True)
class Blinds:
    """All that could not be looked at, each once."""

    seen: dict[str, Blind] = field(default_factory=dict)

    def note(self, answer: Answer, what: str, verb: str, absent: tuple[int, ...] = ()) -> bool:
        """Return whether an answer says something; remember what was not to be had.

        `absent` are statuses that are an answer, too.
        """
        if answer.status == 200 or answer.status in absent:
            return True
        self.seen.setdefault(what, Blind(what, verb, answer.status))
        return False

    def leave_out(self, what: str, verb: str, odd: int, is_cut: bool) -> None:
        """Remember what a list holds and the doctor does not look at."""
        if odd or is_cut:
            self.seen.setdefault(f"some of {what}", Blind(what, verb, 200, odd, is_cut))


PAGE = 500
"""Members of a list that are asked for at a time."""

MOST_PAGES = 40
"""Of one list; of a larger one the first 20,000 members are looked at."""

AT_ONCE = 16
"""Questions to the API server at a time."""


@dataclass(slots=True)
class Asker:
    """Asks, a few questions at a time, and remembers what was not to be had."""

    api: Api
    namespace: str
    blinds: Blinds = field(default_factory=Blinds)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def get(self, path: str, query: Mapping[str, str] = {}) -> Answer:
        """Read a path."""
        async with self.gate:
            return await self.api.get(path, query)

    async def listed(
        self,
        path: str,
        what: str,
        verb: str,
        shape: type[msgspec.Struct] = Shape,
        absent: tuple[int, ...] = (),
    ) -> list[Json] | None:
        """Return the members of a list that are of a shape; `None`: they may not be read."""
        found: list[Json] = []
        query, odd = {"limit": str(PAGE)}, 0
        for _ in range(MOST_PAGES):
            answer = await self.get(path, query)
            if not self.blinds.note(answer, what, verb, absent):
                return found or None
            members = [readable(each, shape) for each in answer.items]
            found += [each for each in members if each is not None]
            odd += members.count(None)
            query["continue"] = _rest(answer)
            if not query["continue"]:
                break
        self.blinds.leave_out(what, verb, odd, bool(query["continue"]))
        return found


def _rest(answer: Answer) -> str:
    """Return what the rest of a list is asked for by; empty: there is none."""
    metadata = answer.said.get("metadata")
    return str(metadata.get("continue") or "") if isinstance(metadata, dict) else ""
