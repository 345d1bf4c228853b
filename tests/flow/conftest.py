"""Engines that several files share the making of."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests import simulated
from tests.doors import Sim


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
