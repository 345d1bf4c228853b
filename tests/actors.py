"""Backends that say what a script has for them, in every API: an engine's and those of providers.

An actor keeps what it was asked, counts what was broken off, and fails as often as it is told to.
Written from the APIs' public descriptions; shares no code with the product.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.stream_grammar import frame, named_sse, sse

Json = dict[str, Any]


@dataclass(frozen=True)
class Use:
    """A tool call, its arguments in the pieces in which a stream brings them."""

    id: str
    name: str
    pieces: Sequence[str]

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def input(self) -> Any:
        return json.loads(self.arguments)


@dataclass(frozen=True)
class Line:
    """An answer: words, then calls."""

    words: Sequence[str] = ()
    uses: Sequence[Use] = ()
    thoughts: Sequence[str] = ()
    is_cut: bool = False
    """By `max_tokens`."""
    prompt: int = 11
    cached: int = 4
    """Of the prompt."""
    said: int = 3

    @property
    def text(self) -> str:
        return "".join(self.words)


@dataclass(frozen=True)
class Failure:
    """An error instead of an answer."""

    status: int
    message: str = "out of order"
    retry_after: str | None = None


@dataclass(frozen=True)
class Asked:
    """One request, as it arrived."""

    path: str
    headers: dict[str, str]
    body: Any


HELLO = Line(("Hello", " there", "."))


@dataclass
class Actor:
    """One server."""

    models: Sequence[str] = ()
    """What it lists, as an engine does."""
    line: Line = HELLO
    failures: list[Failure] = field(default_factory=list)
    """Come first, each once."""
    holds_after: int | None = None
    """Pieces of a stream after which nothing more comes; 0: nothing at all comes."""
    breaks_after: int | None = None
    """Pieces of a stream after which it hangs up."""
    asked: list[Asked] = field(default_factory=list)
    broken_off: int = 0
    """Requests that were given up by whoever asked."""
    url: str = ""

    @property
    def endpoint(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def bodies(self) -> list[Any]:
        return [each.body for each in self.asked]

    def rest(self) -> None:
        """Forget everything, and be as at first."""
        self.line, self.holds_after, self.breaks_after, self.broken_off = HELLO, None, None, 0
        self.failures.clear()
        self.asked.clear()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/version", self._version)
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
            app.router.add_post(path, self._answer)
        app.router.add_post("/model/{model}/{call}", self._answer)
        return app

    async def _list(self, request: web.Request) -> web.Response:
        cards = [{"id": name, "object": "model", "max_model_len": 4096} for name in self.models]
        return web.json_response({"object": "list", "data": cards})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.json()
        self.asked.append(Asked(request.path, headers, body))
        try:
            if self.failures:
                return self._fail(request, self.failures.pop(0))
            if self.holds_after == 0:
                await asyncio.Event().wait()
            return await self._say(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.broken_off += 1
            raise

    def _fail(self, request: web.Request, failure: Failure) -> web.Response:
        error = {"message": failure.message, "type": "x", "param": None, "code": None}
        said: Json = {"error": error}
        headers = {} if failure.retry_after is None else {"retry-after": failure.retry_after}
        if request.path.startswith("/model/"):
            said = {"message": failure.message}
            headers["x-amzn-errortype"] = "ThrottlingException"
        elif request.path.startswith("/v1/messages"):
            said = {"type": "error", "error": {"type": "x_error", "message": failure.message}}
        return web.json_response(said, status=failure.status, headers=headers)

    async def _say(self, request: web.Request, body: Json) -> web.StreamResponse:
        line, last = self.line, request.path.rpartition("/")[2]
        match last:
            case "count_tokens":
                return web.json_response({"input_tokens": line.prompt})
            case "converse":
                return web.json_response(converse(line))
            case "converse-stream":
                kind = "application/vnd.amazon.eventstream"
                return await self._stream(request, converse_frames(line), kind)
        is_chat = last == "completions"
        if not body.get("stream"):
            return web.json_response((chat if is_chat else message)(line, body["model"]))
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = chat_events(line, body["model"], usage) if is_chat else message_events(line, body)
        return await self._stream(request, events, "text/event-stream; charset=utf-8")

    async def _stream(
        self, request: web.Request, pieces: list[bytes], kind: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        for number, piece in enumerate(pieces):
            if number == self.breaks_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if number == self.holds_after:
                await asyncio.Event().wait()
            await response.write(piece)
            await asyncio.sleep(0.001)  # so that pieces come one by one
        return response


@asynccontextmanager
async def acting(*actors: Actor) -> AsyncIterator[None]:
    """Run actors."""
    runners = []
    try:
        for actor in actors:
            runner = web.AppRunner(
                actor.application(),
                access_log=None,
                handler_cancellation=True,
                shutdown_timeout=0.1,
            )
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            actor.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


# === OpenAI's chat ===


def chat(line: Line, model: str) -> Json:
    said: Json = {"role": "assistant", "content": line.text or None}
    if line.thoughts:
        said["reasoning"] = "".join(line.thoughts)
    if line.uses:
        said["tool_calls"] = [
            {"id": u.id, "type": "function", "function": {"name": u.name, "arguments": u.arguments}}
            for u in line.uses
        ]
    choice = {"index": 0, "message": said, "finish_reason": _finish(line)}
    named = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model}
    return {**named, "choices": [choice], "usage": _chat_usage(line)}


def chat_events(line: Line, model: str, usage: bool) -> list[bytes]:
    named = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(finish: str | None = None, **delta: Any) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**named, "choices": [choice]}

    chunks = [chunk(role="assistant", content="")]
    chunks += [chunk(reasoning=thought) for thought in line.thoughts]
    chunks += [chunk(content=word) for word in line.words]
    for at, use in enumerate(line.uses):
        begun: Json = {"index": at, "id": use.id, "type": "function"}
        begun["function"] = {"name": use.name, "arguments": ""}
        chunks.append(chunk(tool_calls=[begun]))
        for piece in use.pieces:
            chunks.append(chunk(tool_calls=[{"index": at, "function": {"arguments": piece}}]))
    chunks.append(chunk(_finish(line)))
    if usage:
        chunks.append({**named, "choices": [], "usage": _chat_usage(line)})
    return [*(sse(each) for each in chunks), sse("[DONE]")]


def _finish(line: Line) -> str:
    return "length" if line.is_cut else "tool_calls" if line.uses else "stop"


def _chat_usage(line: Line) -> Json:
    return {
        "prompt_tokens": line.prompt,
        "completion_tokens": line.said,
        "total_tokens": line.prompt + line.said,
        "prompt_tokens_details": {"cached_tokens": line.cached},
    }


# === Anthropic's messages ===


def message(line: Line, model: str) -> Json:
    blocks: list[Json] = []
    if line.thoughts:
        blocks.append(
            {"type": "thinking", "thinking": "".join(line.thoughts), "signature": "signed"}
        )
    if line.words:
        blocks.append({"type": "text", "text": line.text})
    blocks += [
        {"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}
        for use in line.uses
    ]
    named = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
    ended = {"stop_reason": _stop(line), "stop_sequence": None}
    return {**named, "content": blocks, **ended, "usage": _message_usage(line)}


def message_events(line: Line, body: Json) -> list[bytes]:
    start = message(line, body["model"]) | {"content": [], "stop_reason": None}
    start["usage"] = {**_message_usage(line), "output_tokens": 1}
    events: list[Json] = [{"type": "message_start", "message": start}]
    at = 0

    def block(begun: Json, deltas: list[Json]) -> None:
        nonlocal at
        events.append({"type": "content_block_start", "index": at, "content_block": begun})
        kind = "content_block_delta"
        events.extend({"type": kind, "index": at, "delta": delta} for delta in deltas)
        events.append({"type": "content_block_stop", "index": at})
        at += 1

    if line.thoughts:
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": t} for t in line.thoughts]
        deltas.append({"type": "signature_delta", "signature": "signed"})
        block({"type": "thinking", "thinking": "", "signature": ""}, deltas)
    if line.words:
        words: list[Json] = [{"type": "text_delta", "text": word} for word in line.words]
        block({"type": "text", "text": ""}, words)
    for use in line.uses:
        parts: list[Json] = [{"type": "input_json_delta", "partial_json": p} for p in use.pieces]
        block({"type": "tool_use", "id": use.id, "name": use.name, "input": {}}, parts)
    events.insert(1, {"type": "ping"})
    ended = {"stop_reason": _stop(line), "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": line.said}})
    events.append({"type": "message_stop"})
    return [named_sse(event) for event in events]


def _stop(line: Line) -> str:
    return "max_tokens" if line.is_cut else "tool_use" if line.uses else "end_turn"


def _message_usage(line: Line) -> Json:
    return {
        "input_tokens": line.prompt - line.cached,
        "output_tokens": line.said,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": line.cached,
    }


# === Bedrock's converse ===


def converse(line: Line) -> Json:
    blocks: list[Json] = [{"text": line.text}] if line.words else []
    blocks += [
        {"toolUse": {"toolUseId": use.id, "name": use.name, "input": use.input}}
        for use in line.uses
    ]
    said = {"message": {"role": "assistant", "content": blocks}}
    metrics = {"latencyMs": 5}
    return {
        "output": said,
        "stopReason": _stop(line),
        "usage": _converse_usage(line),
        "metrics": metrics,
    }


def converse_frames(line: Line) -> list[bytes]:
    events: list[tuple[str, Json]] = [("messageStart", {"role": "assistant"})]
    at = 0
    if line.words:
        events.extend(
            ("contentBlockDelta", {"contentBlockIndex": at, "delta": {"text": word}})
            for word in line.words
        )
        events.append(("contentBlockStop", {"contentBlockIndex": at}))
        at += 1
    for use in line.uses:
        begun = {"toolUse": {"toolUseId": use.id, "name": use.name}}
        events.append(("contentBlockStart", {"contentBlockIndex": at, "start": begun}))
        for piece in use.pieces:
            delta = {"toolUse": {"input": piece}}
            events.append(("contentBlockDelta", {"contentBlockIndex": at, "delta": delta}))
        events.append(("contentBlockStop", {"contentBlockIndex": at}))
        at += 1
    events.append(("messageStop", {"stopReason": _stop(line)}))
    told = {"usage": _converse_usage(line), "metrics": {"latencyMs": 5}}
    events.append(("metadata", told))
    return [frame(name, payload) for name, payload in events]


def _converse_usage(line: Line) -> Json:
    return {
        "inputTokens": line.prompt - line.cached,
        "outputTokens": line.said,
        "totalTokens": line.prompt + line.said,
        "cacheReadInputTokens": line.cached,
        "cacheWriteInputTokens": 0,
    }
