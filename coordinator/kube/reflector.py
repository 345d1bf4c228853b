"""Keeps a copy of one kind's objects in line with an API server: lists, then watches, for ever.

A watch that broke off, or whose revision the server no longer has, is healed by listing anew; one
that ran out of its time goes on where it was. While the server is away the copy stays as it is.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import msgspec

from coordinator.kube.api import Answer, Api, ApiAway, Query, Refused
from coordinator.kube.reading import decoded
from coordinator.kube.reflection import GONE, Broken, Gone, Object, Reflection
from lineside import logs
from lineside.clock import Clock

log = logs.get("coordinator.kube.reflector")

T = TypeVar("T")

PAGE = 500
"""Objects in one answer of a list."""

MOST_PAGES = 1000
"""Of one list: half a million objects. A server that always has more makes no sense."""

WATCH_S = 60.0
"""A watch is asked to end after this long and up to half as long again: one that is silent for
longer is dead. Going on where it was costs the server little."""

MOST_LIST_BYTES = 2**30
"""Of all pages together, as they are sent: a hundred thousand pods. A longer list is not read."""

IDLE_SLACK_S = 15.0

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 3.0
"""After a failure; doubled by each further one. Short, since what is deleted meanwhile is to be
gone soon after the server is back."""

REFUSED_PAUSE_S = 10.0
"""After an answer that asking again will not change: no right, no such kind."""

RETRY_AFTER_MOST_S = 30.0

LASTING_S = 1.0
"""A watch that ends sooner than this has failed, whatever it says."""


class Reflector(Generic[T]):
    """One collection's, in one namespace or in all."""

    def __init__(
        self,
        *,
        api: Api,
        path: str,
        read: Callable[[Object], T],
        clock: Clock,
        rng: random.Random,
        changed: Callable[[], object],
    ) -> None:
        """`changed` hears of each change once it is in the copy, and of the first list."""
        self.path = path
        self.copy = Reflection(read)
        self.away = ""
        """Why the server cannot be asked; empty: it can."""
        self.is_missing = False
        """Whether the server has no such kind."""
        self.has_listed = False
        """Whether it is known what there is, or that there is no such kind."""
        self.lists = self.watches = self.failures = 0
        self.heard_at: float | None = None
        """When the server said something last, be it that nothing happened."""
        self._api, self._clock, self._rng, self._tell = api, clock, rng, changed
        self._failed = 0

    async def prime(self) -> None:
        """Return once it is known what there is."""
        while True:
            pause_s = await self._tried(self._list)
            if self.has_listed:
                return
            await self._clock.sleep(pause_s)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            if pause_s := await self._tried(self._follow):
                await self._clock.sleep(pause_s)

    async def _tried(self, step: Callable[[], Awaitable[float]]) -> float:
        """Take a step; return how long to wait before the next."""
        try:
            return await step()
        except Gone:
            self.copy.revision = None
            return self._failed_again()
        except Refused as refused:
            return self._refused(refused.answer)
        except (ApiAway, Broken) as error:
            self.copy.revision = None
            self._set_away(str(error))
            return self._failed_again()
        except RecursionError:
            self.copy.revision = None
            self._set_away("an object is nested too deep")
            return self._failed_again()

    async def _follow(self) -> float:
        """List if need be, and watch for as long as that lasts."""
        if self.copy.revision is None:
            await self._list()
        began = self._clock.monotonic()
        await self._watch(self.copy.revision or "")
        if self._clock.monotonic() - began < LASTING_S:
            return self._failed_again()
        self._failed = 0
        return 0.0

    async def _list(self) -> float:
        objects: list[Object] = []
        token, size = "", 0
        for _ in range(MOST_PAGES):
            query = [("limit", str(PAGE)), *([("continue", token)] if token else ())]
            answer = await self._api.ask("GET", self.path, query)
            if answer.status == GONE:
                raise Gone
            if not answer.is_good:
                raise Refused(answer)
            if (size := size + len(answer.body)) > MOST_LIST_BYTES:
                raise Broken(f"a list is larger than {MOST_LIST_BYTES >> 20} MiB")
            page = _page(answer)
            objects += page.items or ()
            if not (token := page.metadata.more or ""):
                break
        else:
            raise Broken("a list has no end")
        revision = page.metadata.revision
        if not revision:
            raise Broken("a list names no revision")
        self.lists += 1
        has_changed = self.copy.replace(objects, revision)
        first, self.has_listed, self.is_missing = not self.has_listed, True, False
        self.heard_at = self._clock.monotonic()
        if has_changed or first:
            self._tell()
        return 0.0

    async def _watch(self, revision: str) -> None:
        limit_s = WATCH_S * (1 + self._rng.random() / 2)
        query: Query = [
            ("watch", "1"),
            ("resourceVersion", revision),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(int(limit_s))),
        ]
        async with aclosing(self._api.watch(self.path, query, limit_s + IDLE_SLACK_S)) as lines:
            async for line in lines:
                self.heard_at = self._clock.monotonic()
                if not line:
                    self.watches += 1
                    self._set_away("")
                elif self.copy.apply(line):
                    self._failed = 0
                    self._tell()

    def age_s(self, now: float) -> float | None:
        """Return for how long nothing was heard; servers say something every minute."""
        return None if self.heard_at is None else now - self.heard_at

    def _refused(self, answer: Answer) -> float:
        """Note that the server did not do it; return for how long to leave it alone."""
        if answer.status == GONE:
            self.copy.revision = None
            return self._failed_again()
        self.copy.revision = None
        is_missing, first = answer.status == 404, not self.has_listed
        if is_missing:
            # What was there before stays: a server that starts says this of kinds it will have.
            self.is_missing, self.has_listed = True, True
            self._set_away("")
            if first:
                self._tell()
        else:
            self._set_away(answer.reason)
        if is_missing or answer.status in (401, 403):
            return REFUSED_PAUSE_S * (0.5 + 0.5 * self._rng.random())
        return max(self._failed_again(), min(answer.retry_after_s, RETRY_AFTER_MOST_S))

    def _failed_again(self) -> float:
        """Return how long to wait before the next try."""
        self.failures += 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failed, 10))
        self._failed += 1
        return pause_s * (0.5 + 0.5 * self._rng.random())

    def _set_away(self, why: str) -> None:
        if bool(why) != bool(self.away):
            log.warning("API server", path=self.path, away=why or None)
        self.away = why


class _PageMetadata(msgspec.Struct):
    revision: str | None = msgspec.field(name="resourceVersion", default=None)
    more: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    metadata: _PageMetadata
    items: list[dict[str, Any]] | None = None


def _page(answer: Answer) -> _Page:
    try:
        return decoded(answer.body, _Page)
    except msgspec.MsgspecError:
        raise Broken("a list cannot be read") from None
