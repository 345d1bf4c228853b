"""A steady client of a cluster of which parts are killed, and what has to hold of what it saw.

Afterwards predictions are exact again within 5 s; meanwhile nothing is served on what is known to
be wrong, and no request fails that need not.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.killable import Stack
from tests.simulated import MODEL
from tests.waiting import until

EVERY_S = 0.1
EXACT_WITHIN_S = 5.0
ROW = 5
"""Requests in a row that show an engine to be exactly known."""

STRIDE_TOKENS = 4 * 16
START_S = 0.5
"""A coordinator that listens has asked its engines within this."""

INSTANT_S = 0.05
"""How exactly the time of a kill is known."""

LASTING = 5
"""Prompts' common beginnings that are used from the first request to the last."""


@dataclass
class Request:
    """What became of one request. Times are of the event loop's clock."""

    sent: float
    coarse: int
    """What an exact prediction may be below the engine's word."""
    ended: float = 0.0
    status: int | str = "open"
    """Of the answer, or the name of what went wrong with the connection."""
    broken: str = ""
    """How a stream ended that did not end well."""
    engine: str = ""
    reported: int | None = None
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        return self.status == 200 and not self.broken

    @property
    def predicted(self) -> int | None:
        return self.record["outcome"]["predicted_cached_tokens"] if self.record else None

    @property
    def compared(self) -> bool:
        return self.well and self.predicted is not None and self.reported is not None

    @property
    def over(self) -> bool:
        """Whether more was predicted than there was."""
        return self.compared and (self.predicted or 0) > (self.reported or 0)

    @property
    def exact(self) -> bool:
        expected = self.record["outcome"]["speculative_tokens"] or 0
        beyond = (self.reported or 0) - (self.predicted or 0)
        return 0 <= beyond <= self.coarse + expected

    def tried(self, engine: str) -> bool:
        return any(attempt["engine"] == engine for attempt in self.record.get("attempts", ()))


@dataclass
class Seen:
    """What `/debug/engines` said at one time."""

    at: float
    engines: dict[str, dict[str, Any]]


def chat(conversation: int, question: str) -> dict[str, Any]:
    """Return a request that shares its beginning with all of a conversation."""
    beginning = f"Conversation {conversation}. " + "You answer questions on its subject. " * 40
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": beginning},
            {"role": "user", "content": question},
        ],
        "max_tokens": 8,
        "ignore_eos": True,
    }


class Load:
    """A steady client, and a look at the engines' state every so often."""

    def __init__(
        self,
        cluster: Stack,
        session: aiohttp.ClientSession,
        *,
        block_size: int = 16,
        every_s: float = EVERY_S,
    ) -> None:
        self.requests: list[Request] = []
        self.seen: list[Seen] = []
        self.coarse = STRIDE_TOKENS + block_size
        self._every_s = every_s
        self._cluster, self._session = cluster, session
        self._now = asyncio.get_running_loop().time

    @asynccontextmanager
    async def running(self, limit_s: float = 40) -> AsyncIterator[None]:
        """Send until the block ends, then wait for the answers."""
        stop = asyncio.Event()
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(stop))
            tasks.create_task(self._look(stop))
            try:
                yield
            finally:
                stop.set()

    async def _send(self, stop: asyncio.Event) -> None:
        next_at = self._now()
        async with asyncio.TaskGroup() as tasks:
            for n in range(2500):
                if stop.is_set():
                    break
                tasks.create_task(self._request(n))
                next_at += self._every_s
                await asyncio.sleep(next_at - self._now())

    async def _request(self, n: int) -> None:
        # Some go to conversations that last, the others to ones that begin by and by, which are
        # what an empty engine gets.
        own = n // 10 * 10 - n % 3 * 10
        body = chat(n % LASTING if n % 4 == 0 else LASTING + max(0, own), f"Question {n}?")
        if n % 2:
            body |= {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 30}
        request = Request(self._now(), self.coarse)
        self.requests.append(request)
        await self._answer(request, body)
        request.ended = self._now()

    async def _answer(self, request: Request, body: dict[str, Any]) -> None:
        url = f"{self._cluster.http}/v1/chat/completions"
        try:
            async with self._session.post(url, json=body) as answer:
                request.status = answer.status
                request.engine = answer.headers.get("x-lineside-engine", "")
                id = answer.headers.get("x-lineside-decision", "")
                if "stream" in body and answer.status == 200:
                    usage = await self._read_stream(request, answer)
                else:
                    usage = (await answer.json()).get("usage")
        except aiohttp.ClientError as error:
            if request.status == "open":
                request.status = type(error).__name__
            request.broken = request.broken or type(error).__name__
            return
        if usage is not None:
            request.reported = usage["prompt_tokens_details"]["cached_tokens"]
        if (record := await self._ask(f"/debug/decisions/{id}")) is not None:
            request.record = record

    async def _read_stream(self, request: Request, answer: aiohttp.ClientResponse) -> Any:
        usage, ended = None, False
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                ended = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    request.broken = "error event"
                usage = chunk.get("usage") or usage
        if not ended and not request.broken:
            request.broken = "no end"
        return usage

    async def _look(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if (found := await self._ask("/debug/engines")) is not None:
                self.seen.append(Seen(self._now(), {each["id"]: each for each in found}))
            await asyncio.sleep(0.05)

    async def _ask(self, path: str) -> Any:
        """Return the admin listener's answer; `None` while it is down."""
        try:
            async with self._session.get(self._cluster.admin + path) as answer:
                return await answer.json() if answer.status == 200 else None
        except aiohttp.ClientError:
            return None

    async def audit(self) -> list[tuple[str, int, int, int]]:
        """Ask every engine itself about every lasting conversation: the overlap, its own word."""
        found = []
        for conversation in range(LASTING):
            body = chat(conversation, "What is cached?")
            asked = {"path": "/v1/chat/completions", "body": body}
            async with self._session.post(f"{self._cluster.admin}/debug/route", json=asked) as said:
                candidates = (await said.json())["candidates"]
            for each in candidates:
                url = f"http://{each['id']}/v1/chat/completions"
                async with self._session.post(url, json=body) as answer:
                    details = (await answer.json())["usage"]["prompt_tokens_details"]
                overlap, reported = each["overlap_tokens"], details["cached_tokens"]
                found.append((each["id"], conversation, overlap, reported))
        return found

    async def until_live(self) -> None:
        """Wait until every engine is."""

        async def live() -> bool:
            found = await self._ask("/debug/engines") or []
            return [e["cache_state"] for e in found] == ["live"] * len(self._cluster.engines)

        await until(live, 10)

    async def until_idle(self) -> None:
        """Wait until nothing is in flight."""

        async def idle() -> bool:
            return not any(each["inflight"] for each in await self._ask("/debug/engines"))

        await until(idle, 2)

    async def until_exact(self, after: float) -> None:
        """Wait until every engine is, for as long as that may take."""

        async def exact() -> bool:
            return all(self.exact_since(engine, after) for engine in self._cluster.engines)

        with suppress(TimeoutError):  # `check` says of which engine it is not so
            await until(exact, EXACT_WITHIN_S)

    def exact_since(self, engine: str, after: float) -> float | None:
        """Return when the first row of exact answers ended, of those sent after a time."""
        row: list[Request] = []
        theirs = [r for r in self.requests if r.engine == engine and r.sent > after and r.compared]
        for request in sorted(theirs, key=lambda r: r.ended):
            row = [*row, request][-ROW:] if request.exact else []
            if len(row) == ROW and any(each.reported for each in row):
                return request.ended
        return None

    def live_since(self, engine: str, after: float, unlike: str | None) -> float | None:
        """Return when an engine was first seen live, in another generation if one is named."""
        for seen in self.seen:
            state = seen.engines.get(engine)
            if (
                seen.at > after
                and state is not None
                and state["cache_state"] == "live"
                and state["generation"] != unlike
            ):
                return seen.at
        return None


def report(
    killed: str, load: Load, cluster: Stack, before: dict[str, Any], down: float, up: float
) -> None:
    """Print what there was to see; shown when the test fails, or with -s."""
    print(f"\n{killed}: down for {up - down:.2f} s; {len(load.requests)} requests")
    print("  ends", dict(Counter((r.status, r.broken) for r in load.requests)))
    for engine, name in cluster.engines.items():
        exact, live = load.exact_since(engine, up), load.live_since(engine, down, None)
        other = load.live_since(engine, down, before[engine]["generation"])
        shown = [f"{at - up:.2f}" if at else "never" for at in (exact, live, other)]
        print(f"  {name}: exact {shown[0]} s, live {shown[1]} s, other generation {shown[2]} s")
        last = None
        for seen in load.seen:
            if engine not in seen.engines or seen.at < down - 0.2:
                continue
            each = seen.engines[engine]
            state = (each["cache_state"], each["generation"][-4:], each["reason"])
            if state != last:
                print(f"    {seen.at - up:+.2f} s", *state)
                last = state
    for request in load.requests:
        if not request.well or request.over or (request.compared and not request.exact):
            at = f"{request.sent - up:+.2f} to {request.ended - up:+.2f} s"
            outcome = request.record.get("outcome", {})
            told = [cluster.engines.get(request.engine), request.status, request.broken]
            print(
                f"  {at}: {told} predicted {request.predicted} + "
                f"{outcome.get('speculative_tokens')}, reported {request.reported}, "
                f"attempts {request.record.get('attempts')}"
            )


def check(
    names: list[str], load: Load, cluster: Stack, before: dict[str, Any], down: float, up: float
) -> None:
    """Assert all that has to hold of what was seen."""
    gone = [id for id, name in cluster.engines.items() if name in names]
    noticed: dict[str, float] = {}
    for engine in cluster.engines:
        exact = load.exact_since(engine, up)
        assert exact is not None and exact <= up + EXACT_WITHIN_S, engine
        theirs = [r for r in load.requests if r.engine == engine and r.sent > exact and r.compared]
        assert [r for r in theirs if not r.exact] == []
        unlike = before[engine]["generation"] if engine in gone else None
        live = load.live_since(engine, down if names == gone else up, unlike)
        assert live is not None, f"{engine} is not live again"
        noticed[engine] = live
        state = load.seen[-1].engines[engine]
        assert (state["cache_state"], state["reason"]) == ("live", "")
    # Decided on what an engine held that was killed, before anybody could know.
    late = [r for r in load.requests if r.over and r.engine in gone and r.sent < noticed[r.engine]]
    assert [r for r in load.requests if r.over and r not in late] == []
    failed = [r for r in load.requests if not r.well]
    excused = [
        r
        for r in failed
        if ("coordinator" in names and lost_with_the_coordinator(r, down, up))
        or lost_with_an_engine(r, gone, down)
    ]
    assert [r for r in failed if r not in excused] == []


def lost_with_the_coordinator(request: Request, down: float, up: float) -> bool:
    """Say whether nobody was there to take a request, or to end it."""
    cut = not isinstance(request.status, int) or request.broken in ("no end", "ClientPayloadError")
    return cut and request.ended >= down and request.sent <= up


def lost_with_an_engine(request: Request, gone: list[str], down: float) -> bool:
    """Say whether a request was in a killed engine's hands: it may have run, so it is not sent
    again."""
    theirs = request.engine in gone or any(request.tried(engine) for engine in gone)
    failed = request.broken == "error event" or request.status == 502
    return theirs and failed and request.sent <= down + INSTANT_S
