"""An agent that is told to stop while requests stream: it leaves at once, and no request fails."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from agent.main import STOP_S
from tests.killable import stack
from tests.waiting import until

pytestmark = pytest.mark.flow

DAEMONSET = Path(__file__).parents[2] / "daemonset" / "agent.yaml"


async def test_an_agent_that_is_told_to_stop_deregisters_and_fails_no_request(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, engines=1) as running, aiohttp.ClientSession() as session:
        (engine,) = running.engines

        async def page(path: str) -> Any:
            async with session.get(running.admin + path) as answer:
                return await answer.json()

        async def live() -> bool:
            found = {each["id"]: each["cache_state"] for each in await page("/debug/engines")}
            return found == {engine: "live"}

        async def nobody() -> bool:
            return (await page("/debug/members"))["agents"] == []

        async def somebody() -> bool:
            return not await nobody()

        async def idle() -> bool:
            return [each["inflight"] for each in await page("/debug/engines")] == [0]

        await until(live)
        await until(somebody)
        body = {"model": "tiny-qwen3", "prompt": list(range(3, 200)), "ignore_eos": True}
        body |= {"max_tokens": 150, "stream": True}
        url = running.http + "/v1/completions"
        answers = [await session.post(url, json=body) for _ in range(3)]
        assert all([await answer.content.readany() for answer in answers])  # they have begun
        began = asyncio.get_running_loop().time()
        assert await running.processes["agent"].end() == 0
        await until(nobody)
        left_after_s = asyncio.get_running_loop().time() - began
        rest = [await answer.read() for answer in answers]
        assert [answer.status for answer in answers] == [200] * 3
        assert all(each.endswith(b"data: [DONE]\n\n") for each in rest)
        await until(idle)
        assert left_after_s < STOP_S  # long before anything would have to notice a silence
        assert list((tmp_path / "checkpoints").iterdir())
        await running.processes["agent"].start()
        await until(live)
        codes = [await each.end() for each in reversed(running.processes.values())]
        assert codes == [0] * len(codes)


def test_the_manifest_leaves_time_for_it() -> None:
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all(DAEMONSET.read_text())
        if each["kind"] == "DaemonSet"
    )
    assert pod["terminationGracePeriodSeconds"] > STOP_S
