"""Engines and doors that several files share the making of."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import simulate
from coordinator.config import EngineSpec
from tests import simulated
from tests.doors import Sim
from tests.fronts import DOORS, EMBEDDER, Front, Stage, front_of, opened, stage
from tests.nvml.library import built

FOLDER = Path(simulate.__file__).parent / "model"
KEEPING = (
    "--faults",
    "--no-kv-events",
    "--store-responses",
    "--blocks",
    "2000",
    "--answer-tokens",
    "30",
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the NVML library for tests."""
    return built(tmp_path_factory.mktemp("nvml"))


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
    async with stage(tmp_path_factory.mktemp("resources"), door, **settings) as made:
        yield made


@pytest.fixture
def staged(running_stage: Stage) -> Stage:
    """Actors who remember nothing of another test, behind a door with a module's `SETTINGS`."""
    for actor in (running_stage.engine, *running_stage.providers.values()):
        actor.rest()
    return running_stage


@pytest.fixture(scope="module")
def keepers() -> Iterator[tuple[str, str, str]]:
    """Simulated engines' addresses: two that keep responses, and one that embeds."""
    named = ("--served-model-name", EMBEDDER)
    with (
        simulated.engine(*KEEPING) as one,
        simulated.engine(*KEEPING) as two,
        simulated.engine("--no-kv-events", "--pooling", *named) as embedder,
    ):
        yield one["http"], two["http"], embedder["http"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(door: str, keepers: tuple[str, str, str]) -> AsyncIterator[Front]:
    """Clients of a door to simulated engines."""
    specs = [EngineSpec(url=f"http://{each}", tokenizer=str(FOLDER)) for each in keepers]
    async with opened(door, specs, {}) as (running, url), front_of(running, url) as front:
        front.engines = [Sim(each) for each in keepers[:2]]
        yield front
