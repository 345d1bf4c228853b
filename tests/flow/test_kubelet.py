"""Which GPUs serve which engine, by the word of kubelets on real sockets, well and unwell."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest

from agent import kubelet as asking
from agent.assignment import AssignedEngine
from agent.kubelet import Kubelet, KubeletAway, asked
from agent.owners import Devices
from lineside.ids import EngineId, PodIdent
from tests import simulated
from tests.gateways import coordinator as a_coordinator
from tests.kube_http import serving
from tests.kube_memory import PODS, SETS, Server, pod
from tests.kubelets import answer, container, kubelet
from tests.manual_clock import ManualClock
from tests.nvml.library import environment
from tests.waiting import until

pytestmark = pytest.mark.flow

ENGINE = EngineId("10.0.0.1:8000")
Context = grpc.aio.ServicerContext[bytes, bytes]


def one_gpu(uuid: str, namespace: str = "n", name: str = "p") -> bytes:
    return answer((namespace, name, [container("vllm", gpu=[uuid])]))


def saying(said: bytes) -> Callable[[Context], Awaitable[bytes]]:
    async def answering(_: Context) -> bytes:
        return said

    return answering


async def hanging(_: Context) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def busy(context: Context) -> bytes:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


async def refused(path: Path) -> tuple[str, str]:
    with pytest.raises(KubeletAway) as away:
        await asked(str(path))
    return away.value.failure, away.value.detail.replace(str(path), "PATH")


# --- one question --------------------------------------------------------------------------------


async def test_a_kubelet_is_asked(path: Path) -> None:
    async with kubelet(path, saying(one_gpu("GPU-a"))):
        assert await asked(str(path)) == {("n", "p"): (frozenset({"GPU-a"}),)}


async def test_what_a_later_kubelet_says_more_does_no_harm(path: Path) -> None:
    more = one_gpu("GPU-a") + b"\xca\x3e\x05later"
    async with kubelet(path, saying(more)):
        assert await asked(str(path)) == {("n", "p"): (frozenset({"GPU-a"}),)}


async def test_a_full_node_is_read_and_an_answer_without_end_is_not(path: Path) -> None:
    many = [("n", f"p{n}", [container("c", gpu=["GPU-a"])]) for n in range(1000)]
    async with kubelet(path, saying(answer(*many))):
        assert len(await asked(str(path))) == 1000
    huge = one_gpu("GPU-" + "a" * asking.ANSWER_BYTES)
    async with kubelet(path, saying(huge)):
        failure, detail = await refused(path)
    assert failure == "failed"
    assert re.fullmatch(r"RESOURCE_EXHAUSTED: .{1,200}", detail)


async def test_an_answer_of_nothing_but_entries_holds_up_nobody(path: Path) -> None:
    empty = b"\x0a\x00" * (asking.ANSWER_BYTES // 2 - 100)
    began = time.monotonic()
    async with kubelet(path, saying(empty)):
        assert await refused(path) == ("failed", "it lists more than 20000 pods and devices")
    assert time.monotonic() - began < 1.0  # looking at each took two seconds


async def test_a_kubelet_that_hangs_is_slow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.2)
    async with kubelet(path, hanging):
        assert await refused(path) == ("slow", "no answer within 0.2 s")


async def test_a_socket_that_takes_connections_and_says_nothing_is_slow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert await refused(path) == ("slow", "no answer within 0.2 s")


async def test_a_kubelet_that_refuses_says_why(path: Path) -> None:
    async with kubelet(path, busy):
        assert await refused(path) == ("failed", "RESOURCE_EXHAUSTED: rejected by rate limit")
    async with kubelet(path, saying(b"\xff\xff\xff")):
        assert await refused(path) == (
            "failed",
            "it answers something else than a list of pods",
        )


async def test_a_kubelet_without_the_question_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "METHOD", "/v1.Another/List")
    async with kubelet(path, saying(one_gpu("GPU-a"))):
        assert (await refused(path))[1].startswith("UNIMPLEMENTED: ")


async def test_no_socket_and_nobody_behind_it_are_told_apart(path: Path) -> None:
    assert await refused(path) == ("absent", "`PATH` is not there")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))  # and does not listen, as after a kubelet's death
    assert await refused(path) == ("refused", "`PATH` cannot be connected to: connection refused")


async def test_a_socket_of_root_is_denied_to_others(path: Path) -> None:
    async with kubelet(path, saying(one_gpu("GPU-a"))):
        with as_another_user(path):
            assert await refused(path) == ("denied", "`PATH` may not be opened by this user")
        assert await asked(str(path))


@contextmanager
def as_another_user(path: Path) -> Iterator[None]:
    """Run a block without a right to the socket, whoever runs the tests."""
    is_root = os.geteuid() == 0
    path.chmod(0o600 if is_root else 0)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(0o600)


# --- again and again ------------------------------------------------------------------------------


async def test_known_gpus_stay_while_the_kubelet_is_away(path: Path) -> None:
    clock = ManualClock()
    asks = Kubelet(str(path), clock)
    one, other = (
        AssignedEngine(
            EngineId(f"10.0.0.{n}:8000"), "http://e", pod=PodIdent("n", f"p{n}", f"u{n}")
        )
        for n in (1, 2)
    )
    devices = asks.owners

    async def knows(*expected: Devices) -> None:
        async with asyncio.timeout(5):
            while tuple(devices.devices.values()) != expected:
                await clock.advance(asking.GATHER_S)
                await asyncio.sleep(0.01)

    async with asyncio.timeout(20):
        running = asyncio.create_task(asks.run())
        said = answer(*(("n", f"p{n}", [container("c", gpu=[f"GPU-{n}"])]) for n in (1, 2)))
        async with kubelet(path, saying(said)):
            devices.assign([one])  # asked at once, and not in half a minute
            await knows(Devices(("GPU-1",)))
            assert list(asks.troubles()) == []
        devices.assign([one, other])
        await knows(Devices(("GPU-1",)), Devices(unknown="the kubelet has not said yet"))
        while not asks.failing:
            await clock.advance(asking.GATHER_S)
            await asyncio.sleep(0.01)
        ((code, text),) = asks.troubles()
        assert (code, asks.failures["absent"] + asks.failures["refused"] > 0) == (
            "pod_resources_away",
            True,
        )
        assert text.startswith("the kubelet cannot be asked which GPUs serve which engine: `")
        asks.owners.assign([other])
        running.cancel()


class NotingClock(ManualClock):
    """Notes for how long anybody went to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds)


async def test_a_kubelet_is_asked_again_soon_after_a_failure_and_seldom_after_an_answer(
    path: Path,
) -> None:
    clock = NotingClock()
    asks = Kubelet(str(path), clock)

    async def pauses(count: int) -> list[float]:
        async with asyncio.timeout(5):
            while len(clock.slept) < count:
                await clock.advance(asking.GATHER_S)
                await asyncio.sleep(0.01)
        return clock.slept

    running = asyncio.create_task(asks.run())
    failed = [asking.GATHER_S, asking.RETRY_S]
    assert await pauses(2) == failed
    assert asks.answered_at is None
    async with kubelet(path, saying(one_gpu("GPU-a"))):
        assert await pauses(4) == [*failed, asking.GATHER_S, asking.READ_S]
    assert asks.answered_at is not None
    running.cancel()


# --- from a kubelet to a decision -----------------------------------------------------------------


async def test_what_a_kubelet_gave_to_a_pod_is_known_of_its_engine(
    tmp_path: Path, path: Path, library: Path
) -> None:
    server, gpus, config = Server(), tmp_path / "gpus", tmp_path / "agent.json"
    gpus.write_text(
        "".join(f"GPU-{n} H200 total_mib=9 used_mib=1 gpu={n} mem=5\n" for n in (10, 90))
    )

    with simulated.engine() as listening:
        host, _, port = listening["http"].rpartition(":")
        server.put(SETS, "s", {"selector": {"app": "vllm"}, "ports": {"http": int(port)}})
        server.put(PODS, "p", **pod(ip=host, app="vllm"))
        async with (
            serving(server, tmp_path) as cluster,
            a_coordinator(kubernetes=cluster) as running,
        ):
            said = {
                "coordinators": [running.grpc],
                "transport": "plaintext",
                "node": "node-a",
                "pod_resources": str(path),
            }
            config.write_text(json.dumps(said))

            async def seen() -> list[tuple[object, object]]:
                engines = await running.debug("/debug/engines")
                return [(each["gpus"], each["gpu_utilization"]) for each in engines]

            async def is_given() -> bool:
                return await seen() == [(["GPU-90"], 0.9)]

            with agent(config, environment(library, gpus)) as listener:
                await until(lambda: says(listener, "`" + str(path) + "` is not there"))
                assert await seen() == [([], None)]  # not asked, so not known
                async with kubelet(path, saying(one_gpu("GPU-90"))):
                    await until(is_given, 10.0)
                    await until(lambda: says(listener, "[]"))


async def says(listener: str, text: str) -> bool:
    """Whether the agent is ready and names this as degraded."""
    async with aiohttp.ClientSession() as session, session.get(f"{listener}/readyz") as answered:
        state = await answered.json()
        return answered.status == 200 and text in str(state["degraded"])


@contextmanager
def agent(config: Path, environ: dict[str, str]) -> Iterator[str]:
    """Run an agent process until the block ends; give the address of its listener."""
    command = (sys.executable, "-m", "agent.main", "--config", str(config))
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    )
    assert running.stdout is not None
    try:
        yield f"http://{json.loads(running.stdout.readline())['listening']['metrics']}"
    finally:
        running.terminate()
        running.wait(15)
        running.stdout.close()
