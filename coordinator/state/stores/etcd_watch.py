"""One watch on etcd that outlives its connections: each event once, in order, or a word that not.

It goes on at the revision after its last event. A header's revision counts only where etcd says
that there was nothing up to it: taken from a `created` answer it would skip what is still to come.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from coordinator.state.store import Compacted, StoreUnavailable
from coordinator.state.stores.etcd_calls import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    TRY_S,
    Calls,
    Ended,
    Refused,
)
from lineside.v1 import etcd_pb2 as pb

MOST_REFUSALS = 3
"""Of a watch in a row: a token may have run out, a right may just have been given."""


async def events(
    calls: Calls, begin: bytes, end: bytes, after: int, unchanged: Callable[[], Awaitable[None]]
) -> AsyncGenerator[Sequence[pb.Event], None]:
    """Yield every event above a revision, for ever. Raises `Compacted`, `StoreUnavailable`.

    `unchanged` is asked before each connection is used, and raises where etcd lost its data.
    """
    watch = _Watch(calls, begin, end, after + 1)
    while True:
        at = calls.at
        try:
            await unchanged()
            async for batch in watch.read():
                yield batch
        except grpc.aio.AioRpcError as error:
            await calls.failed(error, at)
        except (Ended, StoreUnavailable, TimeoutError):
            calls.move(at)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            calls.move(at)  # not we are cancelled: the channel was closed under the stream
        await watch.pause()


class _Watch:
    """Where a watch stands."""

    def __init__(self, calls: Calls, begin: bytes, end: bytes, next_: int) -> None:
        self._calls, self._begin, self._end = calls, begin, end
        self._next = next_
        """The first revision that was not seen whole."""
        self._pause_s = FIRST_PAUSE_S
        self._refusals = 0

    async def pause(self) -> None:
        await self._calls.clock.sleep(self._pause_s * self._calls.rng.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    async def read(self) -> AsyncGenerator[Sequence[pb.Event], None]:
        """Yield events of one connection until it ends."""
        stream = await self._calls.watching()
        try:
            async with asyncio.timeout(TRY_S):
                await stream.write(self._request())
                self._look(await _answer(stream))
            self._pause_s = FIRST_PAUSE_S
            parts: list[pb.Event] = []  # as large as what etcd catches up with at a time
            while True:
                answer = await _answer(stream)
                self._look(answer)
                parts.extend(answer.events)
                if answer.fragment:
                    continue  # in the middle of a revision there is no place to go on from
                if parts:
                    self._next = parts[-1].kv.mod_revision + 1
                    yield parts
                    parts = []
                elif not answer.created:
                    self._next = max(self._next, answer.header.revision + 1)
        finally:
            stream.cancel()

    def _request(self) -> pb.WatchRequest:
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=self._begin,
                range_end=self._end,
                start_revision=self._next,
                progress_notify=True,
                fragment=True,
            )
        )

    def _look(self, answer: pb.WatchResponse) -> None:
        """Raise where etcd ends the watch."""
        if not answer.canceled:
            self._refusals = 0
            return
        if answer.compact_revision:
            raise Compacted(f"etcd keeps no changes before revision {answer.compact_revision}")
        self._calls.forget_token()
        self._refusals += 1
        if self._refusals >= MOST_REFUSALS:
            self._refusals = 0
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, answer.cancel_reason)
        raise Ended


async def _answer(stream: Any) -> pb.WatchResponse:
    answer = await stream.read()
    if answer is grpc.aio.EOF:
        raise Ended
    assert isinstance(answer, pb.WatchResponse)
    return answer
