"""Engines that are named by host: what gateways are told of them, and for how long."""

import asyncio
import threading
from dataclasses import replace

import pytest

from coordinator.cluster import Cluster
from coordinator.doors.envoy.addresses import (
    AGAIN_S,
    FAILED_S,
    KEPT_S,
    UNKNOWN,
    Addresses,
    look_up,
)
from tests.manual_clock import ManualClock
from tests.test_service import engine
from tests.waiting import until

NAMED, OTHER, PLAIN = "gpu-1.local:8000", "gpu-2.local:8000", "10.0.0.9:8000"


class Names:
    """A resolver in the test's hands."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {"gpu-1.local": ["10.0.0.1", "10.0.0.2"]}
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        self.threads.add(threading.get_ident())
        if host not in self.known:
            raise OSError(-2, "Name or service not known")
        return self.known[host]


class Scene:
    """Two engines by name, and one by address."""

    def __init__(self) -> None:
        self.names, self.clock, self.cluster = Names(), ManualClock(), Cluster()
        self.assign(NAMED, OTHER, PLAIN)
        self.addresses = Addresses(self.cluster, self.clock, self.names)

    def assign(self, *endpoints: str) -> None:
        self.cluster.assign(
            replace(engine(f"e{n}"), endpoint=endpoint) for n, endpoint in enumerate(endpoints)
        )

    async def look(self, after_s: float = 0.0) -> None:
        await self.clock.advance(after_s)
        await asyncio.gather(*(self.addresses.find(host) for host in self.addresses.due()))


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_name_is_told_by_its_address_and_an_address_as_it_is(scene: Scene) -> None:
    assert (scene.addresses.told(NAMED), scene.addresses.told(PLAIN)) == (None, PLAIN)
    await scene.look()
    assert scene.addresses.told(NAMED) == "10.0.0.1:8000"
    assert scene.addresses.named("10.0.0.1:8000") == NAMED
    assert scene.addresses.named("10.0.0.7:8000") == "10.0.0.7:8000"
    assert sorted(scene.names.asked) == ["gpu-1.local", "gpu-2.local"]
    assert threading.get_ident() not in scene.names.threads


async def test_one_of_six_has_brackets(scene: Scene) -> None:
    scene.names.known["gpu-1.local"] = ["fd00::1"]
    await scene.look()
    assert scene.addresses.told(NAMED) == "[fd00::1]:8000"


async def test_a_subset_is_kept_to_by_address_or_host(scene: Scene) -> None:
    await scene.look()
    within = scene.addresses.within
    assert within(None) is None
    assert within(frozenset()) == frozenset()
    for hint in ("10.0.0.1:8000", "10.0.0.1"):
        assert within(frozenset({hint})) == {hint, NAMED}
    assert within(frozenset({"10.0.0.1:9"})) == {"10.0.0.1:9"}


async def test_a_name_without_an_address_is_said_to_be_so(scene: Scene) -> None:
    scene.addresses.due()
    assert scene.addresses.unknown() == {NAMED: UNKNOWN, OTHER: UNKNOWN}
    await scene.look()
    assert scene.addresses.unknown() == {OTHER: "Name or service not known"}
    assert list(scene.addresses.degraded()) == [
        (
            "engine_unresolved",
            f"no gateway can be sent to engine {OTHER}: Name or service not known",
        )
    ]
    scene.names.known["gpu-2.local"] = ["10.0.0.3"]
    await scene.look(FAILED_S)
    assert (scene.addresses.unknown(), scene.addresses.told(OTHER)) == ({}, "10.0.0.3:8000")


async def test_of_several_addresses_the_one_that_is_known_stays(scene: Scene) -> None:
    await scene.look()
    scene.names.known["gpu-1.local"] = ["10.0.0.2", "10.0.0.1"]
    await scene.look(AGAIN_S)
    assert scene.addresses.told(NAMED) == "10.0.0.1:8000"
    scene.names.known["gpu-1.local"] = ["10.0.0.2"]
    await scene.look(AGAIN_S)
    assert scene.addresses.told(NAMED) == "10.0.0.2:8000"


async def test_an_address_outlives_its_resolver_for_a_while(scene: Scene) -> None:
    await scene.look()
    del scene.names.known["gpu-1.local"]
    await scene.look(AGAIN_S)
    assert scene.addresses.told(NAMED) == "10.0.0.1:8000"
    await scene.look(KEPT_S - AGAIN_S)
    assert scene.addresses.told(NAMED) == "10.0.0.1:8000"
    await scene.look(0.1)
    assert scene.addresses.told(NAMED) is None
    assert NAMED in scene.addresses.unknown()


async def test_names_that_no_engine_has_are_forgotten(scene: Scene) -> None:
    await scene.look()
    scene.assign(PLAIN)
    await scene.look(AGAIN_S)
    assert (scene.addresses.unknown(), scene.addresses.told(NAMED)) == ({}, None)
    assert sorted(scene.names.asked) == ["gpu-1.local", "gpu-2.local"]


async def test_it_looks_by_itself_as_long_as_it_runs(scene: Scene) -> None:
    running = asyncio.create_task(scene.addresses.run())
    await until(lambda: scene.addresses.told(NAMED) is not None)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    scene.addresses.close()


def test_the_machines_own_resolver_knows_the_machine() -> None:
    assert look_up("localhost")[0] in ("127.0.0.1", "::1")
