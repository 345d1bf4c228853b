"""`lineside apply` and `lineside rollout` on a store that a running coordinator follows."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from cli.main import main
from coordinator.config import Config
from coordinator.main import run
from tests.test_applied import policy
from tests.waiting import until

pytestmark = pytest.mark.flow


async def test_resources_are_applied_followed_and_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, folder = f"sqlite:{tmp_path / 's.db'}", tmp_path / "policies"
    folder.mkdir()

    async def lineside(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*words, "--store", store])
        return code, *capsys.readouterr()

    def write(name: str, extra: str = "") -> None:
        (folder / "p.yaml").write_text(policy(name, extra)[1])

    code, _, err = await lineside("rollout", "history")
    assert (code, "there is no file" in err) == (3, True)
    free = "127.0.0.1:0"
    stop, bound = asyncio.Event(), asyncio.Queue[dict[str, str]]()
    config = Config(transport="plaintext", store=store, http=free, grpc=free, admin=free)
    announce: Callable[..., None] = bound.put_nowait
    running = asyncio.ensure_future(run(config, stop, announce))
    url = f"http://{(await bound.get())['admin']}/debug/policies"
    async with aiohttp.ClientSession() as session:

        async def in_force(name: str) -> bool:
            async with session.get(url) as answer:
                said = await answer.json()
            return [each["name"].rpartition("/")[2] for each in said["policies"]] == [name]

        for number, name in enumerate("ab", 1):
            write(name)
            code, out, _ = await lineside("apply", "-f", str(folder))
            assert (code, out.splitlines()[-1]) == (0, f"set {number} is in the store: 1 file")
            await until(partial(in_force, name))
        code, out, _ = await lineside("apply", "-f", str(folder), "--json")
        assert (code, json.loads(out)) == (0, {"set": 2, "new": False})
        write("c", "  wrong: 1\n")
        code, out, _ = await lineside("apply", "-f", str(folder))
        assert (code, "unknown-field" in out) == (1, True)

        code, out, _ = await lineside("rollout", "undo")
        assert (code, out) == (0, "set 3 is in force, as set 1 was\n")
        await until(lambda: in_force("a"))
        code, _, err = await lineside("rollout", "undo")
        assert (code, "no set before 1 is kept" in err) == (1, True)
        code, out, _ = await lineside("rollout", "history")
        assert [line.split()[0] for line in out.splitlines()[1:]] == ["3", "2", "1"]
        assert "in force, as set 1" in out.splitlines()[1]
        code, out, _ = await lineside("rollout", "undo", "--to", "2", "--json")
        assert (code, json.loads(out)) == (0, {"set": 4, "as_set": 2})
        await until(lambda: in_force("b"))
        code, out, _ = await lineside("rollout", "history", "--json")
        said = json.loads(out)
        assert [(each["set"], each["in_force"], each["as_set"]) for each in said] == [
            (4, True, 2),
            (3, False, 1),
            (2, False, None),
            (1, False, None),
        ]
    stop.set()
    await running
