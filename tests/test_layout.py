"""Import names are ours; the lock file carries names, versions and hashes only."""

import ast
import re
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "name", ["agent", "cli", "coordinator", "policies", "simulate", "lineside"]
)
def test_no_other_distribution_provides_our_import_names(name: str) -> None:
    assert set(metadata.packages_distributions().get(name, [])) <= {"lineside"}


def test_the_lock_file_names_no_address_and_hashes_everything() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [line for line in lines if "://" in line or " @ " in line]
    pins = [line for line in lines if line and line[0] not in " #"]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[^ ]+ \\", pin) for pin in pins)
    assert len(pins) > 30


HOMES = {
    "zmq": {"agent/subscriber.py", "simulate/publisher.py"},
    "grpc": {
        "agent/dialling.py",
        "agent/kubelet.py",
        "agent/report.py",
        "cli/gateway.py",
        "coordinator/doors/door_grpc.py",
        "coordinator/doors/envoy/door.py",
        "coordinator/doors/envoy/doors.py",
        "coordinator/doors/gateway_listener.py",
        "coordinator/doors/gateway_tls.py",
        "coordinator/agents/ingest.py",
        "coordinator/trust/agents.py",
        "coordinator/trust/server_tls.py",
        "coordinator/state/stores/etcd.py",
        "coordinator/state/stores/etcd_calls.py",
        "coordinator/state/stores/etcd_watch.py",
    },
    "pynvml": {"agent/gpu.py"},
    "sqlite3": {"coordinator/state/stores/sqlite.py", "coordinator/state/stores/tables.py"},
    "kubernetes_asyncio": {"coordinator/kube/login.py"},
    "huggingface_hub": {"coordinator/tokens/hub.py"},
    "yaml": {"cli/envoy.py", "proto/lineside/nodes.py"},
    "lineside.v1": {
        "agent/kubelet.py",
        "agent/report.py",
        "agent/stream.py",
        "agent/wire.py",
        "cli/gateway.py",
        "coordinator/doors/door_grpc.py",
        "coordinator/doors/envoy/wire.py",
        "coordinator/doors/gateway_listener.py",
        "coordinator/agents/ingest.py",
        "coordinator/agents/session.py",
        "coordinator/state/stores/etcd.py",
        "coordinator/state/stores/etcd_calls.py",
        "coordinator/state/stores/etcd_watch.py",
        "coordinator/agents/wire.py",
        "proto/lineside/digest.py",
    },
}
"""Where each foreign thing may be imported; generated types count as one."""


FOLDERS = ("agent", "cli", "coordinator", "policies", "simulate", "proto/lineside")


@cache
def _sources() -> tuple[Path, ...]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(path for path in found if path.parent.name != "v1")  # generated


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("foreign", HOMES)
def test_a_foreign_thing_is_imported_in_its_home_only(foreign: str) -> None:
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in _sources()
        if any(name == foreign or name.startswith(f"{foreign}.") for name in _imported(path))
    }
    assert importers == HOMES[foreign]


def test_what_calls_itself_pure_is_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    held = {
        module
        for contract in contracts["contracts"]
        if contract["name"] == "the core does no I/O"
        for module in contract["source_modules"]
    }
    said = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("proto.")
        for path in _sources()
        if re.search(r"\bPure\b", ast.get_docstring(_tree(path)) or "")
    }
    assert {name for name in said if not any(f"{name}.".startswith(f"{h}.") for h in held)} == set()


def test_answers_of_others_are_read_to_a_bound() -> None:
    """An engine, a provider or an API server may send without end: `read()` would take it all."""
    whole = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in _sources()
        if path.relative_to(ROOT).parts[0] in ("agent", "coordinator")
        and "aiohttp" in _imported(path)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Await)
        and isinstance(node.value, ast.Call)
        and isinstance(called := node.value.func, ast.Attribute)
        and called.attr in ("read", "json", "text")
        and not ast.unparse(called.value).endswith("request")  # a door's, which has a bound
    ]
    assert whole == []
