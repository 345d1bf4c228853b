"""What the doctor asks an API server through, and what comes back.

Whoever implements `Api` brings address and credentials; nothing here knows them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


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
        self, path: str, what: str, verb: str, absent: tuple[int, ...] = ()
    ) -> list[dict[str, Any]] | None:
        """Return the members of a list; `None`: they may not be read."""
        answer = await self.get(path)
        return answer.items if self.blinds.note(answer, what, verb, absent) else None
