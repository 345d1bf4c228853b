"""Servers that do not say where they publish: vLLM's usual port is used once it has proved right.

Each test has a loopback address of its own, so that the usual ports are free there.
"""

import pytest

from coordinator.config import EngineSpec
from coordinator.holdings.audit import FOREIGN
from tests.flow.test_audit import ask, reading, shown, until_state
from tests.gateways import Running, coordinator
from tests.simulated import engine
from tests.waiting import until

pytestmark = pytest.mark.flow

OLD = ("--release", "0.25.1")
USUAL = ("--kv-port", "5557", "--replay-port", "5558")


async def until_heard(gateway: Running, blocks: int) -> None:
    async def heard() -> bool:
        return bool((await shown(gateway))["blocks"] == blocks)

    await until(heard)


async def test_events_at_the_usual_port_count_from_the_first_hit_on() -> None:
    with engine("--host", "127.0.0.91", *OLD, *USUAL) as listening:
        spec = EngineSpec(url=f"http://{listening['http']}")
        async with coordinator(spec) as gateway, reading(gateway):
            guessed = await until_state(gateway, "unproven")
            assert guessed["events"] == "tcp://127.0.0.91:5557"
            assert guessed["reason"].endswith("no request has shown yet that they are its own")
            assert await ask(gateway, 1) == (0, 0)
            await until_heard(gateway, 6)
            assert (await shown(gateway))["cache_state"] == "unproven"
            assert await ask(gateway, 1) == (192, 192)
            proven = await until_state(gateway, "live")
            assert (proven["events_guessed"], proven["audit"]["proven"]) == (True, True)


async def test_anothers_events_at_the_usual_port_are_never_used() -> None:
    host = "127.0.0.92"
    with (
        engine("--host", host, *OLD, "--no-kv-events") as mute,
        engine("--host", host, *OLD, *USUAL),
    ):
        async with (
            coordinator(EngineSpec(url=f"http://{mute['http']}")) as gateway,
            reading(gateway),
        ):
            await until_state(gateway, "unproven")

            async def told() -> bool:
                # Asked for without a pause: what its own events should say is overdue after 3 s.
                for seed in range(FOREIGN):
                    await ask(gateway, seed)
                return "may be another engine's" in (await shown(gateway))["reason"]

            await until(told, limit_s=20)
            found = await shown(gateway)
            assert (found["cache_state"], found["audit"]["proven"]) == ("unproven", False)
            assert "hit more cached tokens than its events say" in found["audit"]["reason"]
