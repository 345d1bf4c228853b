"""The settings of the cluster that is read."""

import pytest

from coordinator.config import Config
from coordinator.kube.settings import Kubernetes
from lineside.settings import read


def load(text: str) -> object:
    return read(Config, f"transport: plaintext\n{text}".encode(), "c.yaml")


def test_a_cluster_is_read_when_the_settings_say_how() -> None:
    found = load("kubernetes: { access: in-cluster, namespaces: [inference, team-a] }")
    assert isinstance(found, Config)
    assert found.kubernetes == Kubernetes(access="in-cluster", namespaces=("inference", "team-a"))
    assert found.kubernetes.is_on and not Kubernetes().is_on


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("kubernetes: { access: in-cluster, namespaces: [] }", "nothing-read", id="no"),
        pytest.param("kubernetes: { namespaces: ['*', a] }", "no-use", id="all and one"),
        pytest.param("kubernetes: { kubeconfig: /k }", "no-use", id="a file that is not used"),
        pytest.param("kubernetes: { access: in-cluster, context: c }", "no-use", id="a context"),
        pytest.param("kubernetes: { namespaces: [A] }", "wrong-value", id="no namespace"),
        pytest.param(
            "resources: /r\nkubernetes: { access: in-cluster }", "two-sources", id="files as well"
        ),
    ],
)
def test_what_cannot_be_meant_is_said(text: str, code: str) -> None:
    found = load(text)
    assert isinstance(found, list)
    assert [finding.code for finding in found] == [code]
