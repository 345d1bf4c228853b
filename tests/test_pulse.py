"""What a coordinator makes of a store that is away, was wiped, or is another cluster's."""

import asyncio

from coordinator.state.pulse import ANSWER_S, LOOK_S, Pulse
from coordinator.state.secret import Secret
from coordinator.state.store import SECRET_KEY, Delete, Put, StoreUnavailable
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


async def test_a_store_that_hangs_is_away() -> None:
    class Hanging(Fickle):
        async def life(self) -> str:
            raise TimeoutError  # as the limit would, without the wait

    pulse = Pulse(Hanging(), Secret(b"secret"), ManualClock(), lambda: None)
    await pulse.look()
    assert pulse.away == f"no answer within {ANSWER_S:g} s"
