"""The configuration that we publish, in a real Envoy, before a coordinator with TLS as it comes."""

import subprocess
from pathlib import Path

import pytest

from cli import envoy
from coordinator.config import EngineSpec, Envoy, Gateways
from tests import simulated
from tests.doors import CHAT
from tests.envoy_rig import post
from tests.envoys import needs_envoy
from tests.gateways import coordinator

pytestmark = [pytest.mark.flow, needs_envoy]


def test_envoy_takes_it_as_it_is() -> None:
    command = [envoy.binary(), "--mode", "validate", "-c", envoy.REFERENCE]
    said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert said.returncode == 0, said.stderr
    assert "deprecated" not in said.stderr.lower()


async def test_clients_are_answered_through_it(tmp_path: Path) -> None:
    with simulated.engine("--no-kv-events") as one, simulated.engine("--no-kv-events") as two:
        engines = [one["http"], two["http"]]
        async with (
            coordinator(
                *(EngineSpec(url=f"http://{each}") for each in engines),
                route="127.0.0.1:0",
                gateways=Gateways(anonymous=True, leave_s=0),
                envoy=Envoy(answers="usage"),
            ) as running,
            envoy.gateway(engines, running.route, tmp_path) as url,
        ):
            forged = {"x-gateway-destination-endpoint": "127.0.0.1:1"}
            got = await post(url, CHAT | {"stream": True}, **forged)
            assert got.headers["x-lineside-engine"] in engines
            assert got.body.endswith(b"data: [DONE]\n\n")
