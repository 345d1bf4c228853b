"""What a coordinator makes of a store that is away, was wiped, or is another cluster's."""

import asyncio

from coordinator.state.pulse import ANSWER_S, LOOK_S, Pulse
from coordinator.state.secret import SECRET_BYTES, Secret
from coordinator.state.store import (
    PUT_BACK_S,
    SECRET_KEY,
    Delete,
    Put,
    StoreUnavailable,
    cluster_secret,
)
from tests.manual_clock import ManualClock
from tests.resting import Resting


class Fickle(Resting):
    """A store that goes away, or becomes another one, when a test says so."""

    away = ""
    lives = 1

    async def life(self) -> str:
        if self.away:
            raise StoreUnavailable(self.away)
        return str(self.lives)


async def test_it_says_why_the_store_is_away_and_when_it_is_back() -> None:
    store, clock, remade = Fickle(), ManualClock(), list[int]()
    pulse = Pulse(store, Secret(b"secret"), clock, lambda: remade.append(1))
    said = []
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pulse.run())
        for away in ("", "etcd: connection refused", ""):
            await store.rest()
            store.away = away
            await clock.advance(LOOK_S)
            await store.rest()
            said.append(pulse.away)
        running.cancel()
    assert (said, pulse.wipes, remade) == (["", "etcd: connection refused", ""], 0, [])
    await store.close()


async def test_what_was_lost_is_put_back_once() -> None:
    store, remade = Fickle(), list[int]()
    pulse = Pulse(store, Secret(b"secret"), ManualClock(), lambda: remade.append(1))
    await pulse.look()
    store.lives = 2
    await store.transact({}, [Delete(SECRET_KEY)])
    await pulse.look()
    await pulse.look()
    stored = await store.get(SECRET_KEY)
    assert stored is not None
    assert (stored.value, pulse.wipes, remade) == (b"secret", 1, [1])
    assert (pulse.away, pulse.is_foreign) == ("", False)
    await store.close()


async def test_another_cluster_s_secret_is_left_and_told() -> None:
    store = Fickle()
    await store.transact({}, [Put(SECRET_KEY, b"theirs")])
    pulse = Pulse(store, Secret(b"ours"), ManualClock(), lambda: None)
    await pulse.look()
    stored = await store.get(SECRET_KEY)
    assert stored is not None
    assert (stored.value, pulse.is_foreign) == (b"theirs", True)
    await store.transact({}, [Put(SECRET_KEY, b"ours")])
    await pulse.look()
    assert not pulse.is_foreign
    await store.close()


async def test_one_that_starts_without_the_store_takes_its_secret_over() -> None:
    store, secret = Fickle(), Secret(None)
    store.away = "etcd: connection refused"
    pulse = Pulse(store, secret, ManualClock(), lambda: None)
    assert pulse.away == "it did not answer at the start"
    await pulse.look()
    assert (pulse.away, secret.value) == (store.away, None)
    store.away = ""
    await store.transact({}, [Put(SECRET_KEY, b"theirs")])
    await pulse.look()
    assert (pulse.away, secret.value, pulse.is_foreign) == ("", b"theirs", False)
    await store.close()


async def test_a_secret_is_made_only_once_nobody_can_have_put_back_a_lost_one() -> None:
    store, secret, clock = Fickle(), Secret(None), ManualClock()
    pulse = Pulse(store, secret, clock, lambda: None)
    await pulse.look()
    await clock.advance(PUT_BACK_S - 0.1)
    await pulse.look()
    assert (secret.value, await store.get(SECRET_KEY)) == (None, None)
    await clock.advance(0.1)
    await pulse.look()
    stored = await store.get(SECRET_KEY)
    assert stored is not None
    assert (stored.value, len(stored.value)) == (secret.value, SECRET_BYTES)
    await store.close()


async def test_a_start_waits_for_those_who_know_the_secret() -> None:
    clock = ManualClock()
    store = Resting(clock)
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(cluster_secret(store, PUT_BACK_S, clock))
        await store.rest()
        await clock.advance(1.0)
        await store.rest()
        await store.transact({}, [Put(SECRET_KEY, b"put back")])
        while not starting.done():
            await clock.advance(0.25)
            await store.rest()
    assert (starting.result(), clock.now < 1000 + PUT_BACK_S) == (b"put back", True)
    await store.close()


async def test_what_cannot_be_written_counts_as_away() -> None:
    store, why = Fickle(), [""]
    pulse = Pulse(store, Secret(b"s"), ManualClock(), lambda: None, lambda: why[0])
    await pulse.look()
    assert pulse.away == ""
    why[0] = "SQLite: database or disk is full"
    assert pulse.away == why[0]
    await store.close()


async def test_a_store_that_hangs_is_away() -> None:
    class Hanging(Fickle):
        async def life(self) -> str:
            raise TimeoutError  # as the limit would, without the wait

    pulse = Pulse(Hanging(), Secret(b"secret"), ManualClock(), lambda: None)
    await pulse.look()
    assert pulse.away == f"no answer within {ANSWER_S:g} s"
