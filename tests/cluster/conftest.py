"""The tools and the API server that the files share. `make test-cluster` gets the tools."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.servers import Api, api_server
from tests.cluster.whole import Whole, bearable, whole_cluster

ROOT = Path(__file__).parent.parent.parent
LINESIDE = Path(sys.executable).with_name("lineside")


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


@pytest.fixture(scope="session")
def whole(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A whole small cluster with nothing in it."""
    if not (tools / "fullcluster" / "kubemark").exists():
        pytest.fail(f"there is no {tools / 'fullcluster'}: run `make test-cluster`", pytrace=False)
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root", pytrace=False)
    with whole_cluster(tools, tmp_path_factory.mktemp("whole")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def applied(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The cluster with coordinator and agents, as the plain manifests have them."""
    for folder in ("deploy", "daemonset"):
        documents = yaml.safe_load_all(whole.kubectl("kustomize", ROOT / folder))
        known = [each for each in documents if each["kind"] != "PodDisruptionBudget"]  # policy/v1
        text = yaml.safe_dump_all([bearable(each) for each in known])
        whole.kubectl("apply", "-f", "-", stdin=text)
    token = "--from-literal=admin-token=b"
    whole.kubectl("create", "secret", "generic", "lineside-tokens", "-n", "lineside", token)
    folder = tmp_path_factory.mktemp("certs")
    made = whole.run(
        *(LINESIDE, "certs", "init", "--dir", folder / "certs", "--format", "kubernetes")
    )
    whole.kubectl("apply", "-f", "-", stdin=made.stdout)
    return whole
