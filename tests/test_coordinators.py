"""Which coordinators get a stream, as their names change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from agent import coordinators
from agent.coordinators import LOOK_S, Coordinators, addresses_of
from tests.manual_clock import ManualClock


class Stream:
    """Reports to nobody."""

    def __init__(self) -> None:
        self.connected = True
        self.ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


@dataclass
class Bench:
    """Names and what they stand for; the streams there were."""

    clock: ManualClock = field(default_factory=ManualClock)
    known: dict[str, set[str] | None] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)

    async def lookup(self, name: str) -> set[str]:
        found = self.known[name]
        if found is None:
            raise OSError("no such name")
        return found

    def stream_to(self, address: str, host: str) -> Stream:
        self.hosts[address] = host
        self.streams[address] = stream = Stream()
        return stream

    async def look(self) -> None:
        await self.clock.advance(LOOK_S)


@asynccontextmanager
async def following(
    bench: Bench, resolve: bool = True, names: tuple[str, ...] = ("all:1",)
) -> AsyncIterator[Coordinators]:
    async with asyncio.TaskGroup() as tasks:
        lookup = bench.lookup if resolve else None
        following = Coordinators(names, tasks, bench.stream_to, bench.clock, lookup)
        running = tasks.create_task(following.run())
        await bench.clock.advance(0)
        yield following
        running.cancel()
        for each in following._running.values():
            each.task.cancel()


async def test_each_name_gets_one_stream_unless_names_are_looked_up() -> None:
    bench = Bench()
    async with following(bench, resolve=False, names=("a:1", "b:1")) as those:
        assert those.streams() == {"a:1": True, "b:1": True}


async def test_every_address_of_a_name_gets_a_stream() -> None:
    bench = Bench(known={"all:1": {"10.0.0.1:1"}})
    async with following(bench) as those:
        assert set(those.streams()) == {"10.0.0.1:1"}
        bench.known["all:1"] = {"10.0.0.1:1", "10.0.0.2:1"}
        await bench.look()
        assert set(those.streams()) == {"10.0.0.1:1", "10.0.0.2:1"}
        assert len(bench.streams) == 2
        assert bench.hosts == {"10.0.0.1:1": "all", "10.0.0.2:1": "all"}  # what certificates say


async def test_an_address_that_is_gone_keeps_its_stream_until_that_is_broken() -> None:
    bench = Bench(known={"all:1": {"10.0.0.1:1", "10.0.0.2:1"}})
    async with following(bench) as those:
        bench.known["all:1"] = {"10.0.0.2:1"}
        await bench.look()
        assert len(those.streams()) == 2
        bench.streams["10.0.0.1:1"].connected = False
        await bench.look()
        assert set(those.streams()) == {"10.0.0.2:1"}
        assert bench.streams["10.0.0.1:1"].ended


async def test_a_name_that_nobody_knows_ends_no_stream() -> None:
    bench = Bench(known={"all:1": {"10.0.0.1:1"}, "more:1": {"10.0.0.9:1"}})
    async with following(bench, names=("all:1", "more:1")) as those:
        for each in bench.streams.values():
            each.connected = False
        bench.known |= {"all:1": None, "more:1": {"10.0.0.8:1"}}
        await bench.look()
        assert set(those.streams()) == {"10.0.0.1:1", "10.0.0.9:1", "10.0.0.8:1"}
        bench.known["all:1"] = {"10.0.0.1:1"}
        await bench.look()
        assert set(those.streams()) == {"10.0.0.1:1", "10.0.0.8:1"}


async def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "MAX_STREAMS", 2)
    bench = Bench(known={"all:1": {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}})
    async with following(bench) as those:
        assert set(those.streams()) == {"10.0.0.1:1", "10.0.0.2:1"}


Found = Callable[..., object]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([(2, "10.0.0.1"), (2, "10.0.0.2")], {"10.0.0.1:9", "10.0.0.2:9"}, id="all"),
        pytest.param([(10, "::1"), (2, "127.0.0.1")], {"127.0.0.1:9"}, id="one of two families"),
        pytest.param([(10, "fd00::1")], {"[fd00::1]:9"}, id="the newer one alone"),
    ],
)
async def test_what_the_resolver_says(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[int, str]], expected: set[str]
) -> None:
    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        return [(family, 1, 6, "", (at, port)) for family, at in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await addresses_of("host:9") == expected
