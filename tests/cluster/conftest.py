"""The tools and the API server that the files share. `make test-cluster` gets the tools."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.servers import Api, api_server


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder with `crdserver`, `helm`, `helm3` and `kubectl`."""
    return Path(os.environ.get("CLUSTER_CACHE", ".cluster")).absolute()


@pytest.fixture(scope="session")
def api(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A real API server without any definition."""
    for needed in (tools / "crdserver", tools / "kubectl"):
        if not needed.exists():
            pytest.fail(f"there is no {needed}: run `make test-cluster`", pytrace=False)
    if shutil.which("etcd") is None:
        pytest.fail("there is no `etcd` on the path: run `make test-cluster`", pytrace=False)
    with api_server(tools, tmp_path_factory.mktemp("cluster")) as api:
        yield api
