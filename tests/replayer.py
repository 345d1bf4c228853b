"""A server that answers with what a test puts in, byte for byte, and keeps what it was asked."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.exchanges import recorded


@dataclass(frozen=True)
class Said:
    """An answer."""

    status: int = 200
    body: bytes = b"{}"
    content_type: str = "application/json"

    @classmethod
    def of(cls, exchange: Any) -> "Said":
        """Return what a recorded engine said."""
        kind = dict(exchange["headers"])["content-type"]
        raw = exchange.get("sse_raw")
        body = json.dumps(exchange["body"]) if raw is None else raw
        return cls(exchange["status"], body.encode(), kind)

    @classmethod
    def events(cls, raw: bytes) -> "Said":
        return cls(200, raw, "text/event-stream; charset=utf-8")


@dataclass
class Replayer:
    """One server with one answer at a time, to everything but its list of models."""

    said: Said = field(default_factory=Said)
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    """Method, path, headers by lower-case name, body."""
    url: str = ""

    @property
    def endpoint(self) -> str:
        return self.url.removeprefix("http://")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response(recorded("get_models")["body"])
        if request.path in ("/version", "/kv_event_sources", "/tokenize"):
            return web.json_response({"version": "0.32.0"})
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        if request.path.endswith("/render"):
            return web.json_response({}, status=403)
        self.asked.append((request.method, request.path_qs, headers, body))
        kind = {"content-type": self.said.content_type, "access-control-allow-origin": "*"}
        return web.Response(status=self.said.status, body=self.said.body, headers=kind)


@asynccontextmanager
async def replayers(*servers: Replayer) -> AsyncIterator[None]:
    """Run servers."""
    runners = []
    try:
        for server in servers:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", server._answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield
    finally:
        for runner in runners:
            await runner.cleanup()
