"""The configuration that we publish, in a real Envoy, before a coordinator with TLS as it comes."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli import envoy
from coordinator.config import EngineSpec, Envoy, Gateways
from tests import simulated
from tests.doors import CHAT
from tests.envoy_rig import post
from tests.envoys import needs_envoy
from tests.gateways import coordinator
from tests.waiting import until

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


async def test_of_answers_it_shows_the_head_and_requests_end_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = envoy.configured

    def as_shipped(text: str, engines: Sequence[str], coordinator: str) -> dict[str, Any]:
        """Change its addresses alone, and not what the demo lets come by."""
        mode = "response_body_mode"
        assert f"{mode}: NONE" in text
        document = json.dumps(changed(text, engines, coordinator))
        found: dict[str, Any] = json.loads(
            document.replace(f'"{mode}": "STREAMED"', f'"{mode}": "NONE"')
        )
        return found

    monkeypatch.setattr(envoy, "configured", as_shipped)
    with simulated.engine("--no-kv-events") as one:
        async with (
            coordinator(
                EngineSpec(url=f"http://{one['http']}"),
                route="127.0.0.1:0",
                gateways=Gateways(anonymous=True, leave_s=0),
            ) as running,
            envoy.gateway([one["http"]], running.route, tmp_path) as url,
        ):
            for body in (CHAT, CHAT | {"stream": True}):
                got = await post(url, body)
                assert got.status == 200

                async def is_over(headers: dict[str, str] = got.headers) -> bool:
                    return bool((await running.record(headers))["outcome"]["end"])

                await until(is_over)
                outcome = (await running.record(got.headers))["outcome"]
                said = (outcome["end"], outcome["status"], outcome["ttft_s"])
                assert said == ("unfollowed", 200, None)
            assert await running.inflight() == [0]
