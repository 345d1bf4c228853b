"""What is known to be broken is known after a restart, for a while: it is tried, not trusted."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pytest

from coordinator.attempts import Fault
from coordinator.breaker import OPEN_MOST_S, OPEN_S, OPENS_AFTER, Breakers, Cause
from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.providers.cooldowns import ASKED_MOST_S, Cooldowns
from coordinator.state.exclusions import FORGET_S, KEY, MOST, Entry, Exclusions, Stored
from coordinator.state.store import Store, StoreUnavailable
from coordinator.state.stores.sqlite import SqliteStore
from lineside.ids import EngineId, GroupId, NodeId
from tests.manual_clock import ManualClock

A, B, P = EngineId("a:1"), EngineId("b:1"), EngineId("default/p")


def engine(name: EngineId) -> Engine:
    return Engine(name, f"http://{name}", name, GroupId("g"), (), NodeId("n"))


class Booted(ManualClock):
    """A clock whose monotonic seconds began at another time than others'."""

    def __init__(self, since: float = 0.0) -> None:
        super().__init__()
        self.since = since

    def monotonic(self) -> float:
        return super().monotonic() - self.since


@dataclass
class Life:
    """One life of a coordinator. Its monotonic clock is its own."""

    store: Store
    clock: Booted = field(default_factory=Booted)

    def __post_init__(self) -> None:
        self.cluster = Cluster()
        self.breakers, self.cooldowns = Breakers(self.cluster, 30.0), Cooldowns()
        self.kept = Exclusions(self.breakers, self.cooldowns, self.store, self.clock)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def find(self, *names: EngineId) -> None:
        """Do what happens when discovery finds engines."""
        self.cluster.assign(engine(name) for name in names)
        self.breakers.found(names)
        for name in names:
            self.breakers.heard(name, self.now)

    def greet(self, *names: EngineId) -> None:
        for name in names:
            self.breakers.reset(name)

    def look(self) -> None:
        """Do what the chores do every second."""
        views = self.cluster.snapshot(self.now).engines
        self.breakers.retain({view.engine.id for view in views})
        for view in views:
            self.breakers.look(view, 0, self.now)

    def fail(self, name: EngineId = A, times: int = OPENS_AFTER) -> None:
        for _ in range(times):
            self.breakers.failed(name, self.now)

    def failing(self) -> set[EngineId]:
        return {v.engine.id for v in self.cluster.snapshot(self.now).engines if v.failing}


async def restarted(store: Store, after_s: float) -> Life:
    """Return a life that begins later, by another monotonic clock."""
    life = Life(store, Booted(since=995.0 + after_s))
    life.clock.now += after_s
    await life.kept.load()
    return life


async def broken(store: Store) -> Life:
    life = Life(store)
    await life.kept.load()
    life.find(A, B)
    life.fail()
    life.cooldowns.failed(P, life.now, life.now, Fault.KEY_REFUSED)
    await life.kept.save()
    return life


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(":memory:")
    yield opened
    await opened.close()


async def test_an_engine_that_failed_gets_nothing_right_after_a_restart(store: Store) -> None:
    await broken(store)
    life = await restarted(store, 1.0)
    life.look()  # before it is found
    life.find(A, B)
    assert life.failing() == {A}, "at once, not with the next look"
    life.greet(A, B)
    life.look()
    assert life.failing() == {A}
    assert life.breakers.take_news() == [(A, Cause.FAILS.value)]


async def test_after_its_time_one_request_finds_out(store: Store) -> None:
    await broken(store)
    life = await restarted(store, 120.0)
    life.find(A, B)
    assert life.failing() == {A}, "not before its server has answered a look"
    life.greet(A, B)
    life.look()
    assert life.failing() == set()
    life.breakers.sent(A, life.now)
    assert life.failing() == {A}, "the others wait for what becomes of the one"
    life.breakers.failed(A, life.now)
    life.clock.now += OPEN_S + 0.1
    life.breakers.heard(A, life.now)
    life.look()
    assert life.failing() == {A}, "a failed trial doubles its time, as ever"


async def test_what_works_again_is_forgotten(store: Store) -> None:
    await broken(store)
    life = await restarted(store, 120.0)
    life.find(A, B)
    life.greet(A, B)
    life.look()
    life.breakers.sent(A, life.now)
    life.breakers.answered(A, life.now)
    life.cooldowns.answered(P, life.now)
    await life.kept.save()
    assert (await store.get(KEY) or pytest.fail()).value == b'{"engines":{},"providers":{}}'
    after = await restarted(store, 121.0)
    after.find(A, B)
    assert after.failing() == set()


async def test_what_is_old_counts_for_nothing(store: Store) -> None:
    await broken(store)
    life = await restarted(store, FORGET_S)
    life.find(A, B)
    assert (life.failing(), life.cooldowns.cooling()) == (set(), {})


@pytest.mark.parametrize("at", [1e308, -1e308, 4_000_000_000.0])
async def test_what_another_clock_wrote_counts_for_nothing_and_goes(
    store: Store, at: float
) -> None:
    """Of a time to come it would never be old, and push out what is new."""
    odd = {EngineId(f"odd:{n}"): Entry("FAILS", at, 5.0) for n in range(MOST)}
    odd[A] = Entry("FAILS", at, 5.0)
    await store.compare_and_set(
        KEY, None, msgspec.json.encode(Stored(odd, {P: Entry("BUSY", at, 5.0)}))
    )
    life = await restarted(store, 1.0)
    life.find(A, B)
    assert (life.failing(), life.cooldowns.cooling()) == (set(), {})
    life.fail(B)
    await life.kept.save()
    stored = msgspec.json.decode((await store.get(KEY) or pytest.fail()).value, type=Stored)
    assert (list(stored.engines), stored.providers) == ([B], {})


@pytest.mark.parametrize(("said", "taken"), [(1e300, OPEN_MOST_S), (-1e300, 0.0)])
async def test_no_pause_is_longer_than_ours_are(store: Store, said: float, taken: float) -> None:
    life = Life(store)
    entry = Entry("BUSY", life.clock.unix(), said)
    engines = {A: Entry("FAILS", life.clock.unix(), said)}
    await store.compare_and_set(KEY, None, msgspec.json.encode(Stored(engines, {P: entry})))
    await life.kept.load()
    assert life.breakers.excluded()[A].open_s == taken
    assert life.cooldowns.cooling()[P].pause_s == (ASKED_MOST_S if taken else 0.0)


async def test_what_is_nested_too_deep_is_unreadable(store: Store) -> None:
    await store.compare_and_set(KEY, None, b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}")
    life = await restarted(store, 1.0)
    assert life.breakers.excluded() == {}


async def test_an_engine_that_comes_back_later_begins_anew(store: Store) -> None:
    await broken(store)
    life = await restarted(store, 1.0)
    life.find(A, B)
    life.greet(A, B)
    life.greet(A)
    assert life.failing() == set()


async def test_a_provider_cools_down_for_what_is_left_and_is_then_tried(store: Store) -> None:
    await broken(store)
    life = await restarted(store, 4.0)
    pause = life.cooldowns.pause(P, life.now)
    assert pause is not None
    assert pause.for_s == pytest.approx(6.0)
    assert pause.is_certain
    life.clock.now += 6.1
    assert life.cooldowns.pause(P, life.now) is None
    life.cooldowns.sent(P, life.now)
    assert life.cooldowns.pause(P, life.now) is not None, "one finds out, the others wait"


async def test_what_a_provider_asked_for_stands(store: Store) -> None:
    before = Life(store)
    await before.kept.load()
    before.cooldowns.failed(P, before.now, before.now, Fault.BUSY, asked_s=300.0)
    await before.kept.save()
    life = await restarted(store, 100.0)
    pause = life.cooldowns.pause(P, life.now)
    assert pause is not None
    assert pause.for_s == pytest.approx(200.0)
    assert pause.is_certain


async def test_coordinators_leave_what_others_found_out(store: Store) -> None:
    one, two = await broken(store), Life(store)
    await two.kept.load()
    two.find(A, B)
    two.greet(A, B)
    two.fail(B)
    await two.kept.save()
    one.breakers.reset(A)
    await one.kept.save()
    life = await restarted(store, 1.0)
    life.find(A, B)
    assert life.failing() == {B}


async def test_nothing_is_written_while_nothing_changes(store: Store) -> None:
    life = Life(store)
    await life.kept.load()
    revision = await store.revision()
    for _ in range(3):
        life.clock.now += 1.0
        await life.kept.save()
    assert await store.revision() == revision
    life.find(A, B)
    life.fail()
    for _ in range(3):
        life.clock.now += 1.0
        life.look()
        await life.kept.save()
    assert await store.revision() == revision + 1


async def test_a_store_that_lost_it_has_it_back(store: Store) -> None:
    life = await broken(store)
    stored = await store.get(KEY)
    assert stored is not None
    await store.compare_and_set(KEY, stored.revision, b"{}")
    life.kept.remake()
    await life.kept.save()
    after = await restarted(store, 1.0)
    after.find(A)
    assert after.failing() == {A}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"not json", id="no JSON"),
        pytest.param(b'{"engines":{"a:1":{"cause":7}}}', id="something else"),
        pytest.param(
            b'{"engines":{"a:1":{"cause":"NEWER","at":0,"open_s":5}}}', id="of a newer release"
        ),
    ],
)
async def test_what_cannot_be_read_is_left(store: Store, value: bytes) -> None:
    await store.compare_and_set(KEY, None, value)
    life = await restarted(store, -1000.0)
    life.find(A, B)
    assert life.failing() == set()


async def test_what_is_kept_is_bounded(store: Store) -> None:
    life = Life(store)
    await life.kept.load()
    for number in range(MOST + 5):
        life.clock.now += 0.01
        life.fail(EngineId(f"e{number}"))
    await life.kept.save()
    stored = await store.get(KEY)
    assert stored is not None
    assert len(stored.value) < 100_000
    after = await restarted(store, 20.0)
    assert len(after.breakers.excluded()) == MOST
    assert EngineId("e0") not in after.breakers.excluded()


class Away:
    """A store that cannot be reached, for now."""

    def __init__(self, store: Store) -> None:
        self.store, self.away = store, True

    def __getattr__(self, name: str) -> object:
        if self.away:
            raise StoreUnavailable("gone")
        return getattr(self.store, name)


async def test_a_store_that_is_away_at_the_start_is_read_later(store: Store) -> None:
    await broken(store)
    away = Away(store)
    life = await restarted(away, 1.0)  # type: ignore[arg-type]
    life.find(A, B)
    life.greet(A, B)
    life.fail(B)
    await life.kept.save()
    away.away = False
    await life.kept.save()
    assert life.breakers.excluded().keys() == {A, B}
    after = await restarted(store, 2.0)
    after.find(A, B)
    assert after.failing() == {A, B}


def test_an_entry_says_only_what_it_needs() -> None:
    assert Stored.__struct_fields__ == ("engines", "providers")
    assert Entry.__struct_fields__ == ("cause", "at", "open_s", "asked")
