"""Fetching /metrics from servers that behave and servers that do not."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.scrape import BUSY_S, IDLE_S, ScrapeFailed, fetch, watch

pytestmark = pytest.mark.flow

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def fetched(
    handler: Handler, timeout_s: float = 5.0, max_bytes: int = 1000
) -> bytes | ScrapeFailed:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        return await fetch(session, f"http://127.0.0.1:{server.port}", timeout_s, max_bytes)


async def test_a_page_is_asked_for_uncompressed() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=request.headers["Accept-Encoding"])

    assert await fetched(handler) == b"identity"


async def test_a_redirect_is_not_followed() -> None:
    async def handler(request: web.Request) -> web.Response:
        raise web.HTTPFound("/elsewhere")

    assert await fetched(handler) == ScrapeFailed("status", "/metrics answered 302")


async def test_an_endless_page_is_given_up() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=bytes(1001))

    assert await fetched(handler) == ScrapeFailed("size", "/metrics is over 1000 bytes")


async def test_a_server_that_stalls_runs_out_of_time() -> None:
    stalled = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"vllm:")
        await stalled.wait()
        return response

    failed = asyncio.create_task(fetched(handler, timeout_s=0.05))
    await asyncio.sleep(0.1)
    stalled.set()
    assert await failed == ScrapeFailed("timeout", "/metrics did not answer in time")


async def test_a_server_that_hangs_up_is_a_failure() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 100
        await response.prepare(request)
        await response.write(b"vllm:")
        assert request.transport
        request.transport.close()
        return response

    failed = await fetched(handler)
    assert failed == ScrapeFailed("protocol", "/metrics broke off: ClientPayloadError")


async def test_no_server_is_a_failure() -> None:
    async with aiohttp.ClientSession() as session:
        failed = await fetch(session, "http://127.0.0.1:1")
    assert failed == ScrapeFailed("connect", "could not connect: Connection refused")


class Steps:
    """A clock that stands still but for its sleeps, and stops the test at the last one."""

    def __init__(self, sleeps: int) -> None:
        self.now = 100.0
        self.left = sleeps
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if len(self.slept) == self.left:
            raise asyncio.CancelledError


async def test_a_busy_server_is_asked_more_often_over_one_connection() -> None:
    connections: set[object] = set()
    answers = iter([b"idle", b"busy", b"busy"])

    async def handler(request: web.Request) -> web.Response:
        connections.add(request.transport)
        return web.Response(body=next(answers))

    taken: list[tuple[bytes | ScrapeFailed, float]] = []

    def take(page: bytes | ScrapeFailed, asked_at: float) -> bool:
        taken.append((page, asked_at))
        return page == b"busy"

    app = web.Application()
    app.router.add_get("/metrics", handler)
    clock = Steps(3)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with pytest.raises(asyncio.CancelledError):
            await watch(session, f"http://127.0.0.1:{server.port}", clock, take)
    busy_at = 100.0 + IDLE_S
    assert taken == [(b"idle", 100.0), (b"busy", busy_at), (b"busy", busy_at + BUSY_S)]
    assert clock.slept == pytest.approx([IDLE_S, BUSY_S, BUSY_S])
    assert len(connections) == 1
