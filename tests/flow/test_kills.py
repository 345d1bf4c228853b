"""Kill -9 and restart of agent, coordinator and engine under load, each and in pairs."""

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest

from tests.killable import stack
from tests.load import LASTING, Load, check, report

pytestmark = pytest.mark.flow

WARM_S = 2.0
DOWN_S = 0.5
AFTER_S = 0.7

KILLS = [
    *("agent", "coordinator", "engine0"),
    *("agent coordinator", "agent engine0", "coordinator engine0"),
]


@pytest.mark.parametrize("killed", KILLS)
async def test_all_is_exact_again_after_a_kill(killed: str, tmp_path: Path) -> None:
    names = killed.split()
    async with (
        stack(tmp_path, engines=2) as cluster,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
    ):
        load, now = Load(cluster, session), asyncio.get_running_loop().time
        await load.until_live()
        async with load.running():
            await asyncio.sleep(WARM_S)
            before = load.seen[-1].engines
            down = now()
            await asyncio.gather(*(each.kill() for each in cluster.named(*names)))
            await asyncio.sleep(DOWN_S)
            await asyncio.gather(*(each.start() for each in cluster.named(*names)))
            up = now()
            await load.until_exact(up)
            await asyncio.sleep(AFTER_S)
        await load.until_idle()
        audited = await load.audit()
        report(killed, load, cluster, before, down, up)
        check(names, load, cluster, before, down, up)
        assert len(audited) == LASTING * len(cluster.engines)
        assert [each for each in audited if not 0 <= each[3] - each[2] <= load.coarse] == []
        assert any(reported for _, _, _, reported in audited)
        codes = {name: await each.end() for name, each in cluster.processes.items()}
        assert codes == dict.fromkeys(cluster.processes, 0)
        for process in cluster.processes.values():
            for pid in process.pids:
                with pytest.raises(ProcessLookupError):
                    os.killpg(pid, 0)
