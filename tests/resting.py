"""A SQLite store that says when nothing that was asked of it is open: tests wait for that alone."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from coordinator.state.stores.sqlite import SqliteStore
from lineside.clock import Clock
from tests.manual_clock import settle

T = TypeVar("T")


class Resting(SqliteStore):
    """In memory, on a test's clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(":memory:", clock=clock)
        self._asked = 0
        self._answered = asyncio.Event()

    async def rest(self) -> None:
        """Wait until all who asked have their answer and ask nothing more."""
        await settle()
        while self._asked:
            self._answered.clear()
            await self._answered.wait()
            await settle()

    async def _call(self, do: Callable[[sqlite3.Connection], T]) -> T:
        self._asked += 1
        try:
            return await super()._call(do)
        finally:
            self._asked -= 1
            self._answered.set()
