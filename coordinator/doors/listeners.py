"""Listening HTTP servers: the door's on the main loop, the admin's on a thread of its own.

A busy main loop answers late. Probes must not, or a coordinator is killed for having much to do: so
the admin listener has a loop to itself, and hands over to the main one what needs its state.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from coordinator.doors.malformed import Answer, Connection
from lineside.process import cannot_listen
from lineside.schema import split_address

CLOSE_S = 1.0
"""What a cancelled handler gets to end in."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    app: web.Application,
    address: str,
    keep_alive_s: float = 75.0,
    malformed: Answer | None = None,
) -> AsyncIterator[str]:
    """Serve an application; give its address. On the way out cancel what still runs.

    `keep_alive_s` bounds the wait for a request's head, the first one's or another's. `malformed`
    answers what is no HTTP; without it aiohttp does, in plain text.
    """
    settings: dict[str, Any] = {
        "access_log": None,
        "logger": _http_logger(),
        "keepalive_timeout": keep_alive_s,
    }
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=CLOSE_S, **settings)
    await runner.setup()
    loop, (host, port) = asyncio.get_running_loop(), split_address(address)
    assert runner.server is not None  # it was set up
    connected: Callable[[], asyncio.Protocol] = runner.server
    if malformed is not None:
        connected = partial(Connection, malformed, runner.server, loop=loop, **settings)
    listening = None
    try:
        try:
            listening = await loop.create_server(connected, host or None, port, backlog=128)
        except OSError as error:
            raise cannot_listen(address, error) from error
        bound: int = listening.sockets[0].getsockname()[1]
        yield f"{address.rpartition(':')[0]}:{bound}"
    finally:
        if listening is not None:
            listening.close()
        await runner.cleanup()


@asynccontextmanager
async def serving_aside(app: web.Application, address: str) -> AsyncIterator[str]:
    """Serve an application on a thread of its own; give its address."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    bound: Future[str] = Future()
    ended: Future[None] = Future()

    async def live() -> None:
        async with serving(app, address) as at:
            bound.set_result(at)
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(live())
        except OSError as error:
            bound.set_exception(error)
        finally:
            loop.close()
            ended.set_result(None)

    thread = threading.Thread(target=run, name="admin", daemon=True)
    thread.start()
    try:
        yield await asyncio.wrap_future(bound)
    finally:
        with contextlib.suppress(RuntimeError):  # it could not listen, and has ended
            loop.call_soon_threadsafe(stop.set)
        await asyncio.wrap_future(ended)
        thread.join()


def handed_over(handler: Handler, main: asyncio.AbstractEventLoop) -> Handler:
    """Return a handler for another loop, which runs this one on the main loop and waits for it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()  # kept by the request: the handler waits for no socket of this loop
        running = asyncio.run_coroutine_threadsafe(_awaited(handler(request)), main)
        return await asyncio.wrap_future(running)

    return handle


async def _awaited(answer: Awaitable[web.StreamResponse]) -> web.StreamResponse:
    return await answer


def _http_logger() -> logging.Logger:
    """Return aiohttp's logger: its tracebacks quote what a client sent, so only names are kept."""
    logger = logging.getLogger("coordinator.http")
    logger.filters = [_names_only]
    return logger


def _names_only(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[0]:
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[0].__name__}", ()
        record.exc_info = None
    return True
