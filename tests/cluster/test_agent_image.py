"""The agent's image, built and run as the DaemonSet says: no root, a read-only root, its mounts.

No kubelet runs here, so podman gets what the manifest asks for, word by word.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.cluster.conftest import LINESIDE, ROOT
from tests.killable import Process, free_ports
from tests.kubelets import answer, kubelet
from tests.kubelets import container as container_of

pytestmark = pytest.mark.cluster

BASE = "localhost/lineside-base:3.11"
IMAGE = "localhost/lineside-agent:test"
NAME = f"lineside-agent-{os.getpid()}"
NODE = "gpu-1"
TOKEN = "the-token-of-this-test"
USER = 10001

LOOK = """\
import json, os
def tried(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return ""
said = dict(line.split(":", 1) for line in open("/proc/1/status").read().splitlines())
print(json.dumps({
    "uid": os.getuid(),
    "groups": os.getgroups(),
    "capabilities": said["CapEff"].strip(),
    "no_new_privileges": said["NoNewPrivs"].strip(),
    "root": tried("/opt/lineside/x"),
    "config": tried("/etc/lineside/config/x"),
    "state": tried("/var/lib/lineside/x"),
    "tls": sorted(n for n in os.listdir("/etc/lineside/tls") if not n.startswith(".")),
}))
"""


def podman(*words: str | Path, timeout_s: float = 60.0) -> str:
    """Run podman; what it prints."""
    environ = {**os.environ, "CONTAINERS_CONF": str(ROOT / "tests" / "cluster" / "containers.conf")}
    done = subprocess.run(
        ("podman", *words), capture_output=True, text=True, timeout=timeout_s, env=environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def image(tools: Path) -> str:
    """The agent's image, of what `make test-cluster` got: a base, and the lock's packages."""
    if os.geteuid() != 0 or shutil.which("podman") is None or shutil.which("buildah") is None:
        pytest.fail("there is no podman for root: run `make test-cluster`", pytrace=False)
    wheels = tools / "wheels"
    if not wheels.exists():
        pytest.fail(f"there is no {wheels}: run `make test-cluster`", pytrace=False)
    (tools / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    words = (
        *("buildah", "bud", "--isolation", "chroot", "--network", "host"),
        *("-v", f"{wheels}:/wheels:ro", "-v", f"{tools / 'pip.conf'}:/etc/pip.conf:ro"),
        *("--build-arg", f"BASE={BASE}", "-f", "deploy/images/agent.Dockerfile", "-t", IMAGE, "."),
    )
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr[-3000:]
    return IMAGE


def manifest(text: str) -> tuple[Any, Any]:
    """Return the DaemonSet's pod, and the agent's settings in it."""
    documents = [each for each in yaml.safe_load_all(text) if each]
    (pod,) = (each["spec"]["template"]["spec"] for each in documents if each["kind"] == "DaemonSet")
    maps = (each["data"] for each in documents if each["kind"] == "ConfigMap")
    (settings,) = (data["agent.yaml"] for data in maps if "agent.yaml" in data)
    return pod, yaml.safe_load(settings)


def rights(pod: Any, container: Any) -> Iterator[str]:
    """Yield podman's words for what the manifest lets the container do."""
    whole, own = pod["securityContext"], container["securityContext"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert whole["runAsNonRoot"] is (whole["runAsUser"] != 0)
    yield f"--user={whole['runAsUser']}:{whole['runAsGroup']}"
    yield f"--group-add={whole['fsGroup']}"
    yield "--cap-drop=all"
    if own["readOnlyRootFilesystem"]:
        yield from ("--read-only", "--read-only-tmpfs=false")
    if not own["allowPrivilegeEscalation"]:
        yield "--security-opt=no-new-privileges"


def mounts(
    pod: Any, container: Any, folder: Path, files: dict[str, dict[str, Path]], *there: str
) -> Iterator[str]:
    """Yield podman's words for the manifest's mounts. `files`: what each volume of files holds;
    `there`: volumes that are made already.
    """
    volumes = {each["name"]: each for each in pod["volumes"]}
    for mount in container["volumeMounts"]:
        name, volume = mount["name"], volumes[mount["name"]]
        where = folder / "volumes" / name
        where.mkdir(parents=True, exist_ok=name in there)
        if "emptyDir" in volume:
            os.chown(where, 0, pod["securityContext"]["fsGroup"])
            where.chmod(0o2770)
        for file, source in files.get(name, {}).items():
            shutil.copy(source, where / file)
            (where / file).chmod(0o644)
        if "secret" in volume:
            assert {each["path"] for each in volume["secret"]["items"]} == files[name].keys()
        mode = "ro" if mount.get("readOnly") else "rw"
        yield f"--volume={where}:{mount['mountPath']}:{mode}"


def environment(container: Any) -> Iterator[str]:
    for each in container["env"]:
        value = each.get("value") or {"LINESIDE_NODE": NODE}[each["name"]]
        yield f"--env={each['name']}={value}"


def certified(folder: Path) -> Path:
    """Make certificates; return where the coordinator's are."""
    words = ("certs", "init", "--dir", folder, "--coordinator-name", "127.0.0.1")
    subprocess.run((LINESIDE, *words), check=True, capture_output=True)
    return folder / "coordinator"


async def until(look: Any, limit_s: float = 60.0) -> Any:
    async with asyncio.timeout(limit_s):
        while not (seen := await look()):  # noqa: ASYNC110 - other processes set no event
            await asyncio.sleep(0.1)
    return seen


async def test_the_agent_runs_as_the_manifest_says(image: str, tmp_path: Path) -> None:
    engine, kv, replay, grpc, admin, http, metrics = free_ports(7)
    certs = certified(tmp_path / "certs")
    words = [
        *("simulate.main", "--port", str(engine), "--kv-port", str(kv)),
        *("--replay-port", str(replay)),
    ]
    coordinator = {
        "tls": {"cert_file": f"{certs}/tls.crt", "key_file": f"{certs}/tls.key"},
        "agent_token": TOKEN,
        "engines": [{"url": f"http://127.0.0.1:{engine}", "node": NODE}],
        **{
            name: f"127.0.0.1:{port}"
            for name, port in (("grpc", grpc), ("admin", admin), ("http", http))
        },
    }
    pod, settings = manifest((ROOT / "daemonset" / "agent.yaml").read_text())
    (container,) = pod["containers"]
    settings |= {"coordinators": [f"127.0.0.1:{grpc}"], "metrics": f"127.0.0.1:{metrics}"}
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "token").write_text(TOKEN)
    files = {
        "config": {"agent.yaml": tmp_path / "agent.yaml"},
        "tls": {"ca.crt": certs / "ca.crt"},
        "token": {"token": tmp_path / "token"},
    }
    run = (
        *("run", "--detach", "--rm", "--name", NAME, "--network=host"),
        *rights(pod, container),
        *mounts(pod, container, tmp_path, files),
        *environment(container),
        image,
        *container["args"],
    )
    async with AsyncExitStack() as stack:
        for process in (
            Process("engine", words, None, tmp_path / "engine.log"),
            Process(
                "coordinator",
                ["coordinator.main", "--config", "-"],
                coordinator,
                tmp_path / "coordinator.log",
            ),
        ):
            stack.push_async_callback(process.end)
            await process.start()
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def engine_known() -> Any:
            async with session.get(f"http://127.0.0.1:{admin}/debug/engines") as answer:
                (found,) = await answer.json()
            return found["cache_state"] == "live" and found

        await asyncio.to_thread(podman, *run)
        try:
            await until(engine_known)
            body = {"model": "tiny-qwen3", "prompt": list(range(3, 300)), "max_tokens": 1}
            async with session.post(f"http://127.0.0.1:{http}/v1/completions", json=body) as answer:
                assert answer.status == 200
            assert (await until(engine_known))["cache_state"] == "live"
            look = ("exec", NAME, "/opt/lineside/bin/python", "-c", LOOK)
            seen = json.loads(await asyncio.to_thread(podman, *look))
        finally:
            await asyncio.to_thread(podman, "stop", "-t", "15", NAME)
    assert seen == {
        "uid": USER,
        "groups": [USER],
        "capabilities": "0" * 16,
        "no_new_privileges": "1",
        "root": "Read-only file system",
        "config": "Read-only file system",
        "state": "",
        "tls": ["ca.crt"],
    }
    kept = [each for each in (tmp_path / "volumes" / "state").iterdir() if each.name != "x"]
    assert kept and {each.stat().st_uid for each in kept} == {USER}  # written at SIGTERM


# --- GPUs by the kubelet's word -------------------------------------------------------------------


def asking_kubelets(tools: Path) -> str:
    """Return what the chart makes where agents ask kubelets, and coordinators prove nothing."""
    words = ("template", "lineside", ROOT / "deploy" / "charts" / "lineside")
    said = ("--set", "agent.gpu.podResources=true,agent.proof=none,tls.source=plaintext")
    command = (tools / "helm", *words, *said)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def asked(page: str) -> str:
    """Return what an agent's metrics say of its kubelet; empty: it was not asked yet."""
    wanted = ("lineside_agent_pod_resources_failures_total", "lineside_agent_pod_resources_up")
    lines = (line for line in page.splitlines() if line.startswith(wanted))
    return next((line for line in lines if not line.endswith(" 0.0")), "")


@pytest.mark.parametrize("by_root", [True, False], ids=["as the chart says", "as another user"])
async def test_the_socket_of_the_kubelet_is_opened_by_root_without_capabilities(
    image: str, tools: Path, tmp_path: Path, by_root: bool
) -> None:
    pod, settings = manifest(await asyncio.to_thread(asking_kubelets, tools))
    (container,) = pod["containers"]
    (port,) = free_ports(1)
    settings |= {"coordinators": ["127.0.0.1:1"], "metrics": f"127.0.0.1:{port}"}
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(settings))
    if not by_root:
        pod["securityContext"] = {**pod["securityContext"], "runAsUser": USER, "runAsNonRoot": True}
    where = tmp_path / "volumes" / "pod-resources"
    where.mkdir(parents=True)
    where.chmod(0o750)  # as the kubelet makes it
    files = {"config": {"agent.yaml": tmp_path / "agent.yaml"}}
    run = (
        *("run", "--detach", "--rm", "--name", NAME, "--network=host"),
        *rights(pod, container),
        *mounts(pod, container, tmp_path, files, "pod-resources"),
        *environment(container),
        image,
        *container["args"],
    )

    async def heard() -> str:
        with suppress(aiohttp.ClientError):
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answered:
                return asked(await answered.text())
        return ""

    async def saying(_: object) -> bytes:
        return answer(("n", "p", [container_of("vllm", gpu=["GPU-a"])]))

    async with aiohttp.ClientSession() as session, kubelet(where / "kubelet.sock", saying):
        await asyncio.to_thread(podman, *run)
        try:
            seen = await until(heard)
            look = ("exec", NAME, "/opt/lineside/bin/python", "-c", RIGHTS)
            rights_seen = json.loads(await asyncio.to_thread(podman, *look))
        finally:
            await asyncio.to_thread(podman, "stop", "-t", "15", NAME)
    if by_root:
        assert seen == "lineside_agent_pod_resources_up 1.0"
        assert rights_seen == {"uid": 0, "capabilities": "0" * 16, "state": ""}
    else:
        assert seen == 'lineside_agent_pod_resources_failures_total{reason="denied"} 1.0'


RIGHTS = """\
import json, os
said = dict(line.split(":", 1) for line in open("/proc/1/status").read().splitlines())
try:
    open("/var/lib/lineside/x", "w").close()
    state = ""
except OSError as error:
    state = error.strerror
print(json.dumps({"uid": os.getuid(), "capabilities": said["CapEff"].strip(), "state": state}))
"""
