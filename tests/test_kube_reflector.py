"""When a reflector lists, watches and waits: against a server that does as a script says."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from coordinator.kube import reflector as reflecting_module
from coordinator.kube.api import JSON, Answer, ApiAway, Body, Query, Refused
from coordinator.kube.reflector import LONGEST_PAUSE_S, Reflector
from tests.manual_clock import ManualClock, settle


def found(name: str, revision: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(revision)}}


def listed(*objects: dict[str, Any], revision: int = 5, more: str = "") -> Answer:
    metadata = {"resourceVersion": str(revision), "continue": more}
    return Answer(200, json.dumps({"metadata": metadata, "items": objects}).encode())


def refused(status: int, retry_after_s: float = 0.0) -> Answer:
    return Answer(status, json.dumps({"message": f"says {status}"}).encode(), retry_after_s)


def event(type: str, object: dict[str, Any]) -> bytes:
    return json.dumps({"type": type, "object": object}).encode()


GONE = event("ERROR", {"code": 410})

Watch = Sequence[bytes | float | Exception]
"""What one watch brings: lines, silences, and an end that is none."""


class Script:
    """An API server whose answers are written down; what it is asked is noted."""

    def __init__(self, clock: ManualClock, lists: Sequence[Any], watches: Sequence[Watch]) -> None:
        self.clock, self.lists, self.watches = clock, list(lists), list(watches)
        self.asked: list[str] = []
        self.at: list[float] = []

    async def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Body | None = None,
        content_type: str = JSON,
    ) -> Answer:
        token = dict(query).get("continue")
        self._note("list" if token is None else f"list {token}")
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Answer)
        return answer

    async def watch(self, path: str, query: Query, idle_s: float) -> AsyncGenerator[bytes, None]:
        said = dict(query)
        assert said["watch"] == "1" and said["allowWatchBookmarks"] == "true"
        assert idle_s > float(said["timeoutSeconds"]) >= 60
        self._note(f"watch {said['resourceVersion']}")
        if not self.watches:
            await asyncio.Event().wait()
        for step in self.watches.pop(0):
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await self.clock.sleep(step)
            else:
                yield step

    async def close(self) -> None:
        pass

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.at.append(self.clock.now - 1000.0)


@asynccontextmanager
async def reflecting(
    lists: Sequence[Any], watches: Sequence[Watch] = ()
) -> AsyncIterator[tuple[Reflector[Any], Script, ManualClock]]:
    clock = ManualClock()
    script = Script(clock, lists, watches)
    reflector = Reflector(
        api=script, path="/pods", read=dict, clock=clock, rng=random.Random(1), changed=lambda: None
    )
    task = asyncio.create_task(reflector.run())
    await settle()
    try:
        yield reflector, script, clock
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(reflector: Reflector[Any]) -> list[str]:
    return sorted(name for _, name in reflector.copy.objects)


OPEN = b""


async def test_a_list_comes_in_pages() -> None:
    pages = [listed(found("a", 1), more="t1"), listed(found("b", 2), more="t2"), listed(revision=9)]
    async with reflecting(pages) as (reflector, script, _):
        assert names(reflector) == ["a", "b"]
        assert script.asked == ["list", "list t1", "list t2", "watch 9"]


async def test_a_page_that_is_gone_begins_the_list_anew() -> None:
    pages = [listed(found("a", 1), more="t"), refused(410), listed(found("b", 2), revision=7)]
    async with reflecting(pages) as (reflector, script, clock):
        await clock.advance(1)
        assert names(reflector) == ["b"]
        assert script.asked == ["list", "list t", "list", "watch 7"]


async def test_a_watch_that_ran_out_goes_on_where_it_was() -> None:
    watch = [OPEN, event("ADDED", found("a", 8)), 30.0, event("BOOKMARK", found("", 12)), 40.0]
    async with reflecting([listed()], [watch]) as (reflector, script, clock):
        await clock.advance(71)
        assert script.asked == ["list", "watch 5", "watch 12"]
        assert (names(reflector), reflector.failures, reflector.away) == (["a"], 0, "")


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(ApiAway("the connection broke"), id="broken connection"),
        pytest.param(b'{"type":"ADDED","obj', id="half a line"),
        pytest.param(event("ERROR", {"code": 500}), id="failure of the server"),
        pytest.param(GONE, id="gone revision"),
        pytest.param(Refused(refused(410)), id="gone before it began"),
        pytest.param(Refused(refused(503)), id="refused"),
    ],
)
async def test_what_a_watch_may_have_missed_is_listed(ending: bytes | Exception) -> None:
    watch: Watch = [OPEN, event("ADDED", found("a", 8)), 10.0, ending]
    lists = [listed(), listed(found("b", 9), revision=20)]
    async with reflecting(lists, [watch]) as (reflector, script, clock):
        assert names(reflector) == ["a"]
        await clock.advance(11)
        assert script.asked == ["list", "watch 5", "list", "watch 20"]
        assert names(reflector) == ["b"]


async def test_while_the_server_is_away_the_copy_stays_and_tries_get_rarer() -> None:
    away = [ApiAway("cannot connect")] * 12
    lists = [listed(found("a", 1)), *away, listed(found("b", 2), revision=9)]
    async with reflecting(lists, [[OPEN, 5.0, ApiAway("broke")]]) as (reflector, script, clock):
        await clock.advance(5)
        assert reflector.away == "broke" and names(reflector) == ["a"]
        await clock.advance(60)
        tries = [at for at, what in zip(script.at, script.asked, strict=True) if what == "list"]
        pauses = [later - before for before, later in pairwise(tries[1:])]
        assert all(pause <= LONGEST_PAUSE_S for pause in pauses)
        assert pauses[0] < 0.3 and pauses[-1] >= LONGEST_PAUSE_S / 2
        assert len({round(pause, 3) for pause in pauses[-4:]}) == 4  # not all at one time
        assert (names(reflector), reflector.lists) == (["b"], 2)


async def test_after_a_watch_that_lasted_tries_begin_anew() -> None:
    early: list[Any] = [ApiAway("cannot connect")] * 6
    lists = [*early, listed(), ApiAway("cannot connect"), listed(revision=9)]
    async with reflecting(lists, [[OPEN, 40.0], [OPEN, 5.0, ApiAway("broke")]]) as (_, s, clock):
        await clock.advance(80)
        tries = [at for at, what in zip(s.at, s.asked, strict=True) if what == "list"]
        assert tries[6] - tries[5] > 1 and tries[8] - tries[7] < 0.3


async def test_being_away_ends_when_a_watch_is_open() -> None:
    watches: list[Watch] = [[OPEN, ApiAway("broke")], [OPEN, 5.0]]
    async with reflecting([listed(), listed(revision=6)], watches) as (reflector, _, clock):
        assert reflector.away == "broke"
        await clock.advance(1)
        assert reflector.away == ""


async def test_a_watch_that_ends_at_once_is_not_asked_for_in_a_circle() -> None:
    async with reflecting([listed()], [[OPEN]] * 200) as (_, script, clock):
        await clock.advance(30)
        assert script.asked.count("list") == 1
        assert len(script.asked) < 25


async def test_a_kind_that_is_not_there_is_known_not_to_be() -> None:
    async with reflecting([refused(404)] * 5) as (reflector, script, clock):
        assert (reflector.is_missing, reflector.has_listed, reflector.away) == (True, True, "")
        await clock.advance(20)
        assert 2 <= len(script.asked) <= 5


async def test_a_kind_that_is_gone_for_a_moment_keeps_its_objects() -> None:
    lists = [listed(found("a", 1)), refused(404), listed(found("a", 1), revision=9)]
    async with reflecting(lists, [[OPEN, 5.0, ApiAway("broke")]]) as (reflector, _, clock):
        await clock.advance(6)
        assert reflector.is_missing and names(reflector) == ["a"]
        await clock.advance(10)
        assert not reflector.is_missing and names(reflector) == ["a"]


async def test_a_right_that_is_missing_is_told_and_asked_for_seldom() -> None:
    async with reflecting([refused(403)] * 9) as (reflector, script, clock):
        assert reflector.away == "it answers 403: says 403" and not reflector.has_listed
        await clock.advance(30)
        assert 3 <= len(script.asked) <= 7


async def test_a_server_that_wants_to_be_left_alone_is() -> None:
    async with reflecting([refused(429, 20.0), listed()]) as (_, script, clock):
        await clock.advance(19)
        assert script.asked == ["list"]
        await clock.advance(2)
        assert script.asked == ["list", "list", "watch 5"]


async def test_first_lists_are_waited_for() -> None:
    clock = ManualClock()
    script = Script(clock, [ApiAway("cannot connect"), refused(403), listed(found("a", 1))], [])
    told: list[int] = []
    reflector = Reflector(
        api=script,
        path="/pods",
        read=dict,
        clock=clock,
        rng=random.Random(1),
        changed=lambda: told.append(1),
    )
    task = asyncio.create_task(reflector.prime())
    await clock.advance(1)
    assert not task.done() and told == []
    await clock.advance(11)
    assert task.done() and told == [1] and names(reflector) == ["a"]


async def test_the_age_is_that_of_the_last_word() -> None:
    watch = [OPEN, 30.0, event("BOOKMARK", found("", 12)), 100.0]
    async with reflecting([listed()], [watch]) as (reflector, _, clock):
        await clock.advance(29)
        assert reflector.age_s(clock.now) == 29
        await clock.advance(11)
        assert reflector.age_s(clock.now) == 10


async def test_a_list_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflecting_module, "MOST_PAGES", 3)
    endless = [listed(found("a", 1), more="on") for _ in range(3)]
    async with reflecting([*endless, listed(found("b", 1))], [[60.0]]) as (
        reflector,
        script,
        clock,
    ):
        assert reflector.away == "a list has no end"
        await clock.advance(1)
        assert names(reflector) == ["b"]
        assert script.asked == ["list", "list on", "list on", "list", "watch 5"]


async def test_a_list_beyond_all_bounds_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [listed(found("a", 1), more="on"), listed(found("b", 1))]
    monkeypatch.setattr(reflecting_module, "MOST_LIST_BYTES", 2**20)
    huge = replace(pages[1], body=pages[1].body + b" " * 2**20)
    async with reflecting([pages[0], huge, *pages], [[b"", 60.0]]) as (reflector, script, clock):
        assert (reflector.away, names(reflector)) == ("a list is larger than 1 MiB", [])
        await clock.advance(1)
        assert (reflector.away, names(reflector)) == ("", ["a", "b"])
        assert script.asked == ["list", "list on", "list", "list on", "watch 5"]


async def test_what_is_too_deep_even_when_cut_ends_nothing() -> None:
    def read(_: Any) -> Any:
        raise RecursionError

    script = Script(ManualClock(), [listed(found("a", 8))], ())
    reflector = Reflector(
        api=script,
        path="/pods",
        read=read,
        clock=script.clock,
        rng=random.Random(1),
        changed=lambda: None,
    )
    task = asyncio.create_task(reflector.run())
    await settle()
    assert not task.done() and reflector.away == "an object is nested too deep"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
