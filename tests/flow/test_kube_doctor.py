"""`lineside doctor --kubernetes` through an API server's proxy to real processes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cli.children import child
from cli.kube.api import Answer
from tests import simulated
from tests.kube_scenes import AGENT, COORDINATOR, CORE, ENGINE, REVIEWS, Scripted, healthy, listed
from tests.waiting import until

pytestmark = pytest.mark.flow

PLAINTEXT: dict[str, Any] = {"transport": "plaintext", "node": "node-a"}


class Cluster:
    """Answers what `kube_scenes` has, and passes on to processes what is asked of pods."""

    def __init__(self, pods: Mapping[str, str]) -> None:
        """`pods`: base of a proxied path to the address behind it."""
        answers = {path: each for path, each in healthy().items() if "/proxy/" not in path}
        names = [COORDINATOR, AGENT, ENGINE]
        listing = answers[f"{CORE}/pods"]["items"]
        there = [
            each for each in listing if any(f"/{each['metadata']['name']}:" in n for n in names)
        ]
        answers[f"{CORE}/pods"] = listed(*there)
        self._scripted = Scripted(answers, set())
        self._pods = pods

    async def answer(self, request: web.Request) -> web.StreamResponse:
        for base, address in self._pods.items():
            if request.path.startswith(base):
                url = f"http://{address}{request.path.removeprefix(base)}"
                async with aiohttp.ClientSession() as session, session.get(url) as behind:
                    body = await behind.read()
                    return web.Response(status=behind.status, body=body)
        if request.path == REVIEWS:
            said = await self._scripted.review(REVIEWS, await request.json())
        else:
            said = await self._scripted.get(request.path)
        return self._sent(said)

    def _sent(self, said: Answer) -> web.Response:
        return web.json_response(said.body, status=said.status)


@asynccontextmanager
async def serving(cluster: Cluster, folder: Path) -> AsyncIterator[Path]:
    """Serve it; give a kubeconfig that names it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cluster.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        file = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
            "users": [{"name": "u", "user": {"token": "not-to-be-shown"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        file.write_text(json.dumps(config))
        yield file
    finally:
        await runner.cleanup()


async def doctor(kubeconfig: Path) -> tuple[int, dict[str, list[Any]]]:
    """Run the command; return its exit code and each part's checks."""
    command = (sys.executable, "-m", "cli.main", "doctor", "--kubernetes", "--json")
    running = await asyncio.create_subprocess_exec(
        *command, "--kubeconfig", str(kubeconfig), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        said, _ = await running.communicate()
    assert b"not-to-be-shown" not in said
    assert running.returncode is not None
    return running.returncode, {each["part"]: each["checks"] for each in json.loads(said)["parts"]}


def wrong(parts: Mapping[str, list[Any]]) -> list[tuple[str, str, str]]:
    return [
        (part, check["code"], check["message"])
        for part, checks in parts.items()
        for check in checks
        if check["level"] not in ("ok", "note")
    ]


async def test_what_processes_say_of_themselves_is_read_and_judged(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = stack.enter_context(simulated.engine())["http"]
        listeners = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
        specs = [{"url": f"http://{engine}"}]
        coordinator, agent = tmp_path / "coordinator.json", tmp_path / "agent.json"
        coordinator.write_text(json.dumps({**PLAINTEXT, **listeners, "engines": specs}))
        one = await stack.enter_async_context(
            child("coordinator", "coordinator.main", ["--config", str(coordinator)])
        )
        agent.write_text(json.dumps({**PLAINTEXT, "coordinators": [one.listening["grpc"]]}))
        two = await stack.enter_async_context(
            child("agent", "agent.main", ["--config", str(agent)])
        )
        pods = {
            COORDINATOR: one.listening["admin"],
            AGENT: two.listening["metrics"],
            ENGINE: engine,
        }
        kubeconfig = await stack.enter_async_context(serving(Cluster(pods), tmp_path))

        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def has_settled() -> bool:
            async with session.get(f"http://{one.listening['admin']}/readyz") as answer:
                said = await answer.json()
            return bool(said["ready"] and not said["degraded"])

        await until(has_settled, 15)
        code, parts = await doctor(kubeconfig)
        # The simulated engine publishes on loopback, and its model is no folder here.
        expected = [("coordinators", "tokenizer"), ("engine lineside/vllm-a-0", "events")]
        assert [(part, code) for part, code, _ in wrong(parts)] == expected
        assert code == 1
        messages = [check["message"] for check in parts["coordinators"]]
        assert "coordinators and agents are of release 0.1.0" in messages
        assert "clocks of 2 processes agree to 1 s" in messages
