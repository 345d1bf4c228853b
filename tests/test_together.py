"""Calls that wait for each other, on a real loop: counted by its turns, never by time."""

import asyncio

import pytest

from coordinator.doors.together import MOST, MOST_BYTES, TURNS, Together


class Bench:
    """Counts turns of the loop, and notes in which one each call went on."""

    def __init__(self) -> None:
        self.together = Together()
        self.turn = 0
        self.went_on: list[tuple[str, int]] = []

    async def call(self, name: str, size: int = 10) -> None:
        await self.together.gather(size)
        self.went_on.append((name, self.turn))

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.turn += 1

    @property
    def names(self) -> list[list[str]]:
        """Those that went on in the same turn, turn by turn."""
        seen = dict.fromkeys(turn for _, turn in self.went_on)
        return [[name for name, at in self.went_on if at == turn] for turn in seen]


async def test_one_alone_goes_on_after_few_turns() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.call("a"))
        await bench.turns(2 * TURNS)
    assert bench.names == [["a"]]
    assert TURNS <= bench.went_on[0][1] <= TURNS + 3


@pytest.mark.parametrize("apart", [0, 1, TURNS - 1])
async def test_those_that_come_close_together_go_on_in_one_turn_and_in_order(apart: int) -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(bench.call(name))
            await bench.turns(apart)
        assert bench.went_on == []
        await bench.turns(2 * TURNS)
    assert bench.names == [["a", "b", "c"]]


async def test_those_that_come_later_wait_anew() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        for name in "ab":
            tasks.create_task(bench.call(name))
            await bench.turns(2 * TURNS)
    assert bench.names == [["a"], ["b"]]


async def test_a_steady_stream_goes_on_by_the_number() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        for number in range(2 * MOST):
            tasks.create_task(bench.call(str(number)))
            await bench.turns(2)
        await bench.turns(2 * TURNS)
    assert [len(each) for each in bench.names] == [MOST, MOST]


async def test_large_bodies_wait_for_nobody() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.call("small"))
        await bench.turns(2)
        tasks.create_task(bench.call("large", MOST_BYTES))
        await bench.turns(3)
        assert bench.names == [["small", "large"]]


async def test_one_that_was_given_up_holds_up_nobody() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(bench.call("gone"))
        tasks.create_task(bench.call("b"))
        await bench.turns(2)
        gone.cancel()
        await bench.turns(2 * TURNS)
    assert bench.names == [["b"]]


async def test_whoever_parts_does_so_after_all_have_gone_on() -> None:
    together, done = Together(), list[str]()

    async def call(name: str) -> None:
        await together.gather(10)
        done.append(f"{name} decides")
        await together.part()
        done.append(f"{name} is sent")

    async with asyncio.TaskGroup() as tasks:
        for name in "ab":
            tasks.create_task(call(name))
    assert done == ["a decides", "b decides", "a is sent", "b is sent"]
