"""How agent and coordinator run and end: their loop, signals, announcement and exit code.

Knows nothing of what runs; settings and their findings are `lineside.launch`'s.
"""

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeAlias

import uvloop

from lineside import logs
from lineside.launch import CLEAN, COULD_NOT_RUN

Announce: TypeAlias = Callable[[Mapping[str, str]], None]
"""Takes the addresses that a process listens on, once it does."""

Run: TypeAlias = Callable[[asyncio.Event, Announce], Coroutine[None, None, None]]
"""Runs until the event is set. Raises `OSError`, or a group of them, where it cannot."""

log = logs.get("lineside.process")


def serve(run: Run, *, end_within_s: float | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    Where `run` cannot, standard error says why in one line. What is no `OSError` is raised.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_signalled(run, end_within_s))
    except (OSError, BaseExceptionGroup) as error:
        if (reason := _why(error)) is None:
            raise
        sys.stderr.write(f"could not run: {reason}\n")
        return COULD_NOT_RUN
    return CLEAN


def cannot_listen(address: str, error: OSError) -> OSError:
    """Return the error to raise where an address cannot be bound."""
    if error.errno == errno.EADDRINUSE:
        reason = "another process does; name another port"
    else:
        reason = (error.strerror or "no reason given").lower()
    return OSError(f"cannot listen on `{address}`: {reason}")


def _why(error: BaseException) -> str | None:
    """Return the first reason; `None`: something went wrong that has none, or is no `OSError`."""
    if isinstance(error, BaseExceptionGroup):
        reasons = [_why(each) for each in error.exceptions]
        return None if None in reasons else reasons[0]
    return str(error) or None if isinstance(error, OSError) else None


async def _until_signalled(run: Run, end_within_s: float | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        if end_within_s is not None:
            loop.call_later(end_within_s, _end_now, end_within_s)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    await run(stop, _announce)


def _announce(listening: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps({"listening": listening}) + "\n")
    sys.stdout.flush()


def _end_now(limit_s: float) -> None:
    log.warning("did not stop in time", limit_s=limit_s)
    os._exit(COULD_NOT_RUN)
