"""Sends an engine a short prompt that nobody has sent before, twice, and listens to its events.

For `lineside doctor --probe`: it costs the engine two requests of a few hundred tokens, and leaves
some blocks in its cache. What it proves: that the events at hand are this engine's, and that it
says how much of a prompt was cached.
"""

import asyncio
import secrets
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from agent.kv_events import Batch, BlockStored
from agent.sequence import Gap, Place, Whole
from agent.subscriber import CannotSubscribe, Subscriber
from coordinator.engines import Engine
from lineside.decoding import decoded
from lineside.hashing import pack

CONNECT_S = 3.0
"""For the subscription; a publisher that connects to us tries again every 0.1 s."""

EVENT_S = 3.0
"""From the answer to its events, which leave the engine with the same step."""

REPLAY_S = 4.0
"""For the replay of one batch, asked for three times at most."""

SILENCE_S = 0.5
"""A replay of one batch that says nothing for this long will not come."""

BLOCKS = 3
"""The prompt fills at least so many."""

BLOCK_TOKENS = 16
"""Taken for an engine that does not tell."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of a probe."""

    failure: str = ""
    """Why no request was answered; the rest is then unknown."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """What the second answer says; `None`: nothing."""
    own: bool = False
    """The prompt's blocks were announced."""
    others: bool = False
    """Events came, and none of the prompt's blocks was among them."""
    wide_hashes: bool = False
    replays: bool | None = None
    """The replay socket gave the probe's own batch again; `None`: that was not tried."""
    unreadable: str = ""
    """Why no event can be read."""


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, frozen=True):
    usage: _Usage


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Failed(Exception):
    """The engine does not answer; says how."""


async def probe(http: aiohttp.ClientSession, engine: Engine, block_size: int | None) -> Probed:
    """Probe one engine."""
    heard, replays = _Heard(), None
    listening = asyncio.create_task(heard.listen(engine)) if engine.events else None
    try:
        if listening is not None:
            await heard.until_ready()
        prompt = await _prompt(http, engine, block_size or BLOCK_TOKENS)
        heard.expect(prompt, block_size or BLOCK_TOKENS)
        usages = [await _complete(http, engine, prompt) for _ in range(2)]
        if listening is not None:
            await heard.until_own()
            replays = await _replays(engine, heard.place)
    except _Failed as failed:
        return Probed(failure=str(failed))
    finally:
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    details = usages[-1].prompt_tokens_details
    return Probed(
        prompt_tokens=len(prompt),
        cached_tokens=details.cached_tokens if details else None,
        own=heard.own.is_set(),
        others=heard.batches > 0,
        wide_hashes=heard.wide,
        replays=replays,
        unreadable=heard.problem,
    )


class _Heard:
    """What comes from a publisher while a probe is under way."""

    def __init__(self) -> None:
        self.own = asyncio.Event()
        self.batches = 0
        self.wide = False
        self.problem = ""
        self.place: Place | None = None
        """The batch with the prompt's first block."""
        self._ready = asyncio.Event()
        self._expected = b""

    def expect(self, prompt: list[int], block_size: int) -> None:
        """Name the prompt whose first block is to be heard of."""
        self._expected = pack(prompt[:block_size])

    async def listen(self, engine: Engine) -> None:
        """Read until cancelled."""
        reader = Subscriber(engine.events, bind=engine.events_bind, topic=engine.topic)
        try:
            async with aclosing(reader.items()) as items:
                async for item in items:
                    if isinstance(item, Whole):
                        self._ready.set()
                    elif isinstance(item, Batch):
                        self._take(item, reader.place)
        except CannotSubscribe as cannot:
            self.problem = f"{cannot} (an agent may hold it)"
            self._ready.set()
            self.own.set()  # nothing more is to be waited for

    def _take(self, batch: Batch, place: Place | None) -> None:
        self.batches += 1
        for event in batch.events:
            if not (isinstance(event, BlockStored) and self._expected):
                continue
            if event.packed.startswith(self._expected):
                self.wide = any(isinstance(key, bytes) for key in event.keys)
                self.place = place
                self.own.set()

    async def until_ready(self) -> None:
        """Wait for the connection; without one there will be nothing to hear."""
        await _within(CONNECT_S, self._ready)

    async def until_own(self) -> None:
        """Wait for the prompt's first block."""
        await _within(EVENT_S, self.own)


async def _replays(engine: Engine, place: Place | None) -> bool | None:
    """Tell whether a batch that was heard comes again when it is asked for."""
    if place is None or not engine.replay or engine.events_bind:  # that address is still taken
        return None
    reader = Subscriber(
        engine.events, engine.replay, topic=engine.topic, place=place, silence_s=SILENCE_S
    )
    try:
        async with asyncio.timeout(REPLAY_S), aclosing(reader.items()) as items:
            async for item in items:
                if isinstance(item, Whole) or (isinstance(item, Gap) and item.lost):
                    return isinstance(item, Whole)
    except (TimeoutError, CannotSubscribe):
        pass
    return False


async def _within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _prompt(http: aiohttp.ClientSession, engine: Engine, block_size: int) -> list[int]:
    """Return tokens that no request had before. Raises `_Failed`."""
    wanted = BLOCKS * block_size + 1
    body = {"model": engine.models[0].name, "prompt": secrets.token_hex(4 * wanted)}
    answer: _Tokens = await _post(http, engine, "/tokenize", body, _Tokens)
    if len(answer.tokens) < wanted:
        raise _Failed("its /tokenize makes too few tokens of a long text")
    return answer.tokens[:wanted]


async def _complete(http: aiohttp.ClientSession, engine: Engine, prompt: list[int]) -> _Usage:
    body = {"model": engine.models[0].name, "prompt": prompt, "max_tokens": 1}
    answer: _Answer = await _post(http, engine, "/v1/completions", body, _Answer)
    return answer.usage


async def _post(
    http: aiohttp.ClientSession, engine: Engine, path: str, body: dict[str, Any], kind: Any
) -> Any:
    headers = {} if engine.rank is None else {"X-data-parallel-rank": str(engine.rank)}
    try:
        async with http.post(engine.base_url + path, json=body, headers=headers) as answer:
            if answer.status != 200:
                raise _Failed(f"POST {path} answers {answer.status}")
            return decoded(await answer.read(), kind)
    except TimeoutError:
        raise _Failed(f"POST {path} is not answered in time") from None
    except aiohttp.ClientError:
        raise _Failed(f"POST {path}: the connection broke") from None
    except msgspec.MsgspecError:
        raise _Failed(f"POST {path} answers something else than vLLM does") from None
