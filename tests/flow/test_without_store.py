"""A coordinator whose etcd was never there: it starts, serves, says so, and stops in time."""

import time
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import EngineSpec
from tests import simulated
from tests.gateways import coordinator
from tests.killable import free_ports
from tests.test_applied import policy
from tests.waiting import until

pytestmark = pytest.mark.flow


async def test_it_serves_by_load_alone_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "kept.yaml").write_text(policy("kept")[1])
    (port,) = free_ports(1)
    settings: dict[str, Any] = {
        "store": f"etcd:http://127.0.0.1:{port}",
        "resources": str(tmp_path),
    }
    with simulated.engine("--blocks", "200", "--no-kv-events") as engine:
        async with coordinator(EngineSpec(url=f"http://{engine['http']}"), **settings) as running:
            await until(running.ready)
            degraded = (await running.debug("/readyz"))["degraded"]
            assert any(each.startswith("the store is away: ") for each in degraded)
            unknown = "the cluster's secret is not known yet: all requests go by load alone"
            assert unknown in degraded
            body = {"model": simulated.MODEL, "prompt": [1, 2, 3], "max_tokens": 1}
            status, *_ = await running.post("/v1/completions", body)
            assert status == 200
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 5
