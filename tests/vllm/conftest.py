"""Servers that several files share, and their logs beside whatever failed.

`VLLM_VENV` names the environment that has vLLM; `make test-vllm` makes it.
"""

import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm import model
from tests.vllm.asks import chat
from tests.vllm.product import Product, product
from tests.vllm.servers import Fleet, Server


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and logs are."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def model_folder(folder: Path) -> Path:
    """The model that every engine serves."""
    return model.write(folder / "model")


@pytest.fixture(scope="session")
def adapter(folder: Path) -> Path:
    """A LoRA adapter of it."""
    return model.write_adapter(folder / "adapter")


@pytest.fixture(scope="session")
def fleet(folder: Path, model_folder: Path) -> Iterator[Fleet]:
    """Every server of the session."""
    command = Path(os.environ.get("VLLM_VENV", ".venv-vllm"), "bin", "vllm").absolute()
    if not command.exists():
        pytest.fail(f"there is no {command}: run `make test-vllm`", pytrace=False)
    fleet = Fleet(command, model_folder, folder)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="session")
def pair(fleet: Fleet, adapter: Path) -> tuple[Server, Server]:
    """Two equal servers, with an adapter; each also has a name that nobody else answers to."""
    servers = []
    for name in ("one", "two"):
        words = (
            *("--served-model-name", model.NAME, f"only-{name}"),
            *("--enable-lora", "--max-lora-rank", "8"),
            *("--lora-modules", f"{model.ADAPTER}={adapter}"),
        )
        late = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
        servers.append(fleet.launch(name, *words, environment=late))
    for server in servers:
        server.wait()
    one, two = servers
    return one, two


@pytest.fixture
async def front(pair: tuple[Server, Server], tmp_path: Path) -> AsyncIterator[Product]:
    """The product before both engines, their caches empty."""
    for server in pair:
        server.empty()
    async with product(tmp_path, *({"url": server.url} for server in pair)) as front:
        await front.until_states("live", "live")
        await front.until_loaded(*chat())
        yield front


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Show the end of every server's log with a failure."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        fleet = item.funcargs.get("fleet")
        for server in fleet.servers if isinstance(fleet, Fleet) else ():
            report.sections.append((f"log of server {server.name}", server.tail()))
    return report
