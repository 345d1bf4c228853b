"""The product before engines, as its own processes: a coordinator, an agent, and a client."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.killable import Process, free_ports
from tests.vllm.model import BLOCK
from tests.waiting import until

LIMIT_S = 60.0
"""For one answer; an engine on a busy machine is slow."""

LIVE_WITHIN_S = 15.0
KNOWN_WITHIN_S = 3.0
SETTLE_S = 0.1
STRIDE_TOKENS = 4 * 16
"""Every fourth key of 16 tokens is reported: the coordinator's default."""


@dataclass
class Answer:
    """What became of one request."""

    status: int
    engine: str = ""
    text: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    """Of an answer in one piece."""
    chunks: list[dict[str, Any]] = field(default_factory=list)
    """Of a stream."""
    ended: bool = True
    """A stream came to its `[DONE]`."""
    record: dict[str, Any] = field(default_factory=dict)
    """What the coordinator remembers of it."""

    @property
    def well(self) -> bool:
        broken = any("error" in chunk for chunk in self.chunks)
        return self.status == 200 and self.ended and not broken

    @property
    def predicted(self) -> int | None:
        """Cached tokens that the index promised."""
        predicted: int | None = self.record["outcome"]["predicted_cached_tokens"]
        return predicted

    @property
    def reported(self) -> int | None:
        """Cached tokens that the engine counted."""
        reported: int | None = self.record["outcome"]["cached_tokens"]
        return reported

    @property
    def beyond(self) -> int | None:
        """By how much the engine found more than was promised; below 0: less."""
        if self.predicted is None or self.reported is None:
            return None
        return self.reported - self.predicted


@dataclass
class Product:
    """A coordinator and an agent that run, and a client."""

    http: str
    admin: str
    session: aiohttp.ClientSession
    coordinator: Process
    agent: Process

    async def ask(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request as a client would; return its answer with its record."""
        async with self.session.post(self.http + path, json=body, headers=headers) as reply:
            answer = Answer(reply.status, reply.headers.get("x-lineside-engine", ""))
            if reply.content_type == "text/event-stream":
                await _read_stream(reply, answer)
            else:
                answer.body = await reply.json()
                answer.text = "".join(map(_said, answer.body.get("choices", ())))
            decision = reply.headers.get("x-lineside-decision", "")
        if decision:
            answer.record = await self._record(decision)
        return answer

    async def _record(self, decision: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def has_ended() -> bool:
            found.update(await self.debug(f"/debug/decisions/{decision}"))
            return found["outcome"]["end"] is not None

        await until(has_ended)
        return found

    async def debug(self, path: str) -> Any:
        """Return a page of the admin listener."""
        async with self.session.get(self.admin + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def overlaps(self, path: str, body: Mapping[str, Any]) -> dict[str, int]:
        """Return what each engine holds of a request, as a decision would see it now."""
        asked = {"path": path, "headers": {}, "body": body}
        async with self.session.post(f"{self.admin}/debug/route", json=asked) as answer:
            candidates = (await answer.json())["candidates"]
        return {candidate["id"]: candidate["overlap_tokens"] for candidate in candidates}

    async def until_known(self, path: str, body: Mapping[str, Any], answer: Answer) -> None:
        """Wait until the index holds what an answer left in its engine's cache.

        Events of the same step travel together, so what it evicted is known then too.
        """
        prompt: int = answer.record["outcome"]["prompt_tokens"]
        left = (prompt - 1) // BLOCK * BLOCK - STRIDE_TOKENS

        async def so() -> bool:
            overlaps = await self.overlaps(path, body)
            return overlaps.get(answer.engine, 0) >= left

        if left > 0:
            with suppress(TimeoutError):  # evicted already; whoever compares will tell
                await until(so, KNOWN_WITHIN_S)
        await asyncio.sleep(SETTLE_S)  # for the last tokens that were generated

    async def until_loaded(self, path: str, body: Mapping[str, Any]) -> None:
        """Wait until the tokenizer is loaded; before, engines are asked for a request's tokens."""
        asked = {"path": path, "headers": {}, "body": body}

        async def so() -> bool:
            async with self.session.post(f"{self.admin}/debug/route", json=asked) as answer:
                record: dict[str, Any] = await answer.json()
            return record.get("tokens_reason") != "loading"

        await until(so, LIVE_WITHIN_S)

    async def engines(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each engine."""
        return {engine["id"]: engine for engine in await self.debug("/debug/engines")}

    async def states(self) -> dict[str, tuple[str, str]]:
        """Return the state of each engine's cache, and its reason."""
        found = (await self.engines()).items()
        return {id: (engine["cache_state"], engine["reason"]) for id, engine in found}

    async def until_states(self, *states: str, within_s: float = LIVE_WITHIN_S) -> None:
        """Wait until the engines' caches are in these states, in the order of their ids' naming."""
        seen: list[str] = []

        async def so() -> bool:
            try:
                seen[:] = [state for state, _ in (await self.states()).values()]
            except aiohttp.ClientError:  # it is being started again
                return False
            return seen == list(states)

        try:
            await until(so, within_s)
        except TimeoutError:
            raise AssertionError(f"{seen} after {within_s} s, not {list(states)}") from None


async def _read_stream(reply: aiohttp.ClientResponse, answer: Answer) -> None:
    answer.ended = False
    async for line in reply.content:
        if line.startswith(b"data: [DONE]"):
            answer.ended = True
        elif line.startswith(b"data: "):
            answer.chunks.append(json.loads(line[6:]))
    answer.text = "".join(
        _said(choice) for chunk in answer.chunks for choice in chunk.get("choices", ())
    )


def _said(choice: Mapping[str, Any]) -> str:
    message = choice.get("message") or choice.get("delta") or choice
    return message.get("text") or message.get("content") or ""


@asynccontextmanager
async def product(
    folder: Path, *engines: dict[str, Any], **settings: Any
) -> AsyncIterator[Product]:
    """Run coordinator and agent before engines, each named as in the coordinator's settings."""
    _make(folder)
    http, grpc, admin = (f"127.0.0.1:{port}" for port in free_ports(3))
    token = "between-agent-and-coordinator"
    listening = {"http": http, "grpc": grpc, "admin": admin}
    configs: dict[str, dict[str, Any]] = {
        "coordinator": {
            "transport": "plaintext",
            "engines": engines,
            "agent_token": token,
            "store": f"sqlite:{folder / 'state.db'}",
            "drain_s": 2.0,
            "probe_s": 0.5,
            **listening,
            **settings,
        },
        "agent": {
            "transport": "plaintext",
            "coordinators": [grpc],
            "token": token,
            "checkpoint_dir": str(folder / "checkpoints"),
        },
    }
    coordinator, agent = (
        Process(name, [f"{name}.main", "--config", "-"], config, folder / f"{name}.log")
        for name, config in configs.items()
    )
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    try:
        await asyncio.gather(coordinator.start(), agent.start())
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield Product(f"http://{http}", f"http://{admin}", session, coordinator, agent)
    finally:
        codes = await asyncio.gather(coordinator.end(), agent.end())
    assert not any(codes), codes


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
