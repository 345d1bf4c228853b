"""A small stand-in for a vLLM server: answers as the captures do, and fails when told to."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

MODEL = "tiny-qwen3"
ROOT = "/models/tiny-qwen3"


@dataclass
class FakeEngine:
    """One server. `requests` holds what it was sent; the other fields say how it behaves."""

    url: str = ""
    models: tuple[str, ...] = (MODEL,)
    adapters: tuple[str, ...] = ()
    sources: dict[str, Any] | None = field(default_factory=dict)
    words: int = 5
    word: str = "w"
    cached_tokens: int = 32
    first_s: float = 0.0
    between_s: float = 0.0
    cut_after: int | None = None
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    ready: bool = True
    key: str | None = None
    """What it was started with as `--api-key`."""
    refuses: str | None = None
    """A field of the body that it is too old to know."""
    counts: int | None = None
    """What it takes a message's tokens for; `None`: it has no such path."""
    _runner: web.AppRunner | None = None

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        app = web.Application(middlewares=[self._authenticated])
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/kv_event_sources", self._sources)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/messages/count_tokens", self._count)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    @property
    def _authenticated(self) -> Middleware:
        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            given = request.headers.get("authorization")
            if request.path != "/version" and self.key and given != f"Bearer {self.key}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(request)

        return checked

    @property
    def endpoint(self) -> str:
        return self.url.removeprefix("http://")

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _models(self, request: web.Request) -> web.Response:
        if not self.ready:
            return web.Response(status=503)
        bases = [_card(name, ROOT, None) for name in self.models]
        adapters = [_card(name, f"/adapters/{name}", self.models[0]) for name in self.adapters]
        return web.json_response({"object": "list", "data": bases + adapters})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _sources(self, request: web.Request) -> web.Response:
        if self.sources is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(self.sources)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body.get("prompt") or json.dumps(body.get("messages"))
        tokens = list(text.encode())
        return web.json_response({"count": len(tokens), "max_model_len": 1024, "tokens": tokens})

    async def _count(self, request: web.Request) -> web.Response:
        if self.counts is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"input_tokens": self.counts})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        body = await request.json()
        self.bodies.append(body)
        try:
            await asyncio.sleep(self.first_s)
            if body["model"] not in (*self.models, *self.adapters):
                return web.json_response(unknown_model(body["model"]), status=404)
            if self.refuses is not None and self.refuses in body:
                error = {"message": f"extra fields: {self.refuses}", "code": 400}
                return web.json_response({"error": error}, status=400)
            if body.get("temperature", 0) < 0:
                return web.json_response(BAD_TEMPERATURE, status=400)
            if body.get("stream"):
                return await self._stream(request, body)
            await asyncio.sleep(self.between_s * self.words)
            return web.json_response(self._answer(request, body))
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted.set()
            raise

    def _answer(self, request: web.Request, body: dict[str, Any]) -> dict[str, Any]:
        text = "x" * self.words
        choice = {"index": 0, "finish_reason": "length"}
        chat = "messages" in body
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request.headers.get('x-request-id')}",
            "model": body["model"],
            "choices": [choice | ({"message": {"content": text}} if chat else {"text": text})],
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": 100,
            "completion_tokens": self.words,
            "total_tokens": 100 + self.words,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for at, event in enumerate(self.events(body)):
            if self.cut_after == at:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(event)
            await asyncio.sleep(self.between_s)
        await response.write_eof()
        return response

    def events(self, body: dict[str, Any]) -> list[bytes]:
        """Return the events that a stream consists of."""
        chat = "messages" in body
        chunks: list[dict[str, Any]] = []
        if chat:
            chunks.append({"choices": [_delta({"role": "assistant", "content": ""})]})
        for at in range(self.words):
            finish = "length" if at == self.words - 1 else None
            word = f"{self.word}{at}"
            choice = _delta({"content": word}) if chat else {"index": 0, "text": word}
            chunks.append({"choices": [choice | {"finish_reason": finish}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({"choices": [], "usage": self._usage()})
        events = [json.dumps(c, separators=(",", ":")).encode() for c in chunks]
        return [b"data: " + event + b"\n\n" for event in (*events, b"[DONE]")]


BAD_TEMPERATURE = {
    "error": {
        "message": "temperature must be non-negative, got -1.0.",
        "type": "BadRequestError",
        "param": "temperature",
        "code": 400,
    }
}


def unknown_model(name: str) -> dict[str, Any]:
    """Return the engine's own answer to a model that it does not serve."""
    message = f"The model `{name}` does not exist."
    return {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}


def _delta(delta: dict[str, str]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": None}


def _card(name: str, root: str, parent: str | None) -> dict[str, Any]:
    length = 1024 if parent is None else None
    return {"id": name, "object": "model", "root": root, "parent": parent, "max_model_len": length}


@asynccontextmanager
async def fake_engines(*engines: FakeEngine) -> AsyncIterator[tuple[FakeEngine, ...]]:
    """Run engines for the length of a test."""
    try:
        for engine in engines:
            await engine.start()
        yield engines
    finally:
        for engine in engines:
            await engine.stop()
