"""One streamed chat as a client sees it: how long until the first token, what was cached."""

import json
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

TOTAL_LIMIT_S = 60.0
"""A chat that has not finished by then has failed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished or failed request. Token counts are the engine's own; `None`: not said."""

    engine: str
    ttft_s: float | None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    answer: str = ""
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether the client got no whole answer."""
        return bool(self.error)


async def chat(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], engine: str = ""
) -> Sample:
    """Send one streamed chat and read it to its end.

    `engine` names the one behind `url`; a gateway names its choice in `x-lineside-engine`.
    """
    started = time.monotonic()
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with (
            session.post(
                f"{url}/v1/chat/completions",
                json=request,
                timeout=aiohttp.ClientTimeout(total=TOTAL_LIMIT_S),
            ) as answer,
        ):
            engine = answer.headers.get("x-lineside-engine", engine)
            if answer.status != 200:
                return Sample(engine, None, error=f"status {answer.status}")
            return await _read(answer, engine, started)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Sample(engine, None, error=type(error).__name__)


async def _read(answer: aiohttp.ClientResponse, engine: str, started: float) -> Sample:
    first: float | None = None
    usage: dict[str, Any] = {}
    text: list[str] = []
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            details = usage.get("prompt_tokens_details") or {}
            return Sample(
                engine,
                first,
                usage.get("prompt_tokens"),
                details.get("cached_tokens"),
                "".join(text),
            )
        event = json.loads(data)
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if content := choice["delta"].get("content"):
                first = first or time.monotonic() - started
                text.append(content)
    return Sample(engine, first, error="the stream ended without [DONE]")
