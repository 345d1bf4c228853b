"""Engines and doors that several files share the making of."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests import simulated
from tests.doors import Sim
from tests.fronts import DOORS, Stage, stage


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Sim, Sim]]:
    with (
        simulated.engine("--faults", "--blocks", "2000") as one,
        simulated.engine("--faults", "--blocks", "2000") as two,
    ):
        yield Sim(one["http"]), Sim(two["http"])


@pytest.fixture
async def sims(servers: tuple[Sim, Sim]) -> AsyncIterator[tuple[Sim, Sim]]:
    """Two engines without a fault, before and after."""
    try:
        yield servers
    finally:
        for server in servers:
            await server.heal()


@pytest.fixture(scope="module", params=DOORS)
def door(request: pytest.FixtureRequest) -> str:
    """By which door the official clients come in."""
    name: str = request.param
    return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_stage(
    request: pytest.FixtureRequest, door: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    settings = getattr(request.module, "SETTINGS", {})
    async with stage(tmp_path_factory.mktemp("resources"), door, **settings) as built:
        yield built


@pytest.fixture
def staged(running_stage: Stage) -> Stage:
    """Actors who remember nothing of another test, behind a door with a module's `SETTINGS`."""
    for actor in (running_stage.engine, *running_stage.providers.values()):
        actor.rest()
    return running_stage
