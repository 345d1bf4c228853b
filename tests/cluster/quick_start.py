"""The quick start of the guide, as commands; and how each is run where there is no real cluster.

Every command of the guide has an entry here, and every entry is of a command.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "kubernetes.md"


@dataclass(frozen=True, slots=True)
class Way:
    """How a command is run: on which servers as it is written, or what is run for it, and why."""

    small: str = "as written"
    """On the small cluster of an old release: `as written`, another command, or empty: nothing."""
    current: str = ""
    """On the API server for custom resources, of a current release."""
    why: str = ""
    """Why it is not run as written on the small cluster."""


def commands(page: str) -> list[str]:
    """Return the commands of the numbered steps, each as one line."""
    (section,) = re.findall(r"^## Quick start\n(.*?)^#", page, re.M | re.S)
    lines = re.findall(r"^ {7}(\S.*(?:\\\n.*)*)$", section, re.M)
    return [re.sub(r"\\\n\s*", "", line) for line in lines]


def readme_commands(page: str) -> list[str]:
    """Return the commands of the README's section on clusters, without their comments."""
    (block,) = re.findall(r"^## In a cluster\n.*?^```\n(.*?)^```", page, re.M | re.S)
    return [re.sub(r"  +# .*", "", line) for line in block.splitlines()]


OLD = "release 1.20: it has no PodDisruptionBudget of policy/v1, and its tokens name no node"

WAYS: dict[str, Way] = {
    "helm install lineside-crds deploy/charts/lineside-crds": Way(
        small="kubectl apply -f without-rules.json",
        current="helm template lineside-crds deploy/charts/lineside-crds --dry-run=server"
        " | kubectl apply -f -",
        why="release 1.20 knows no rules in CEL; the other server keeps no Secrets for Helm",
    ),
    "kubectl create namespace lineside": Way(),
    "kubectl -n lineside create secret generic lineside-tokens"
    " --from-literal=admin-token=$(openssl rand -hex 32)": Way(),
    "kubectl -n lineside create secret generic vllm"
    " --from-literal=key=$(openssl rand -hex 32)": Way(),
    "lineside certs init --dir certs --format kubernetes | kubectl apply -f -": Way(),
    "helm install lineside deploy/charts/lineside -n lineside -f deploy/examples/values.yaml": Way(
        small="helm3 install lineside charts/lineside -n lineside -f deploy/examples/values.yaml"
        " --set agent.needsNode=false --post-renderer ./bearable",
        why=f"{OLD}; its nodes have one processor each",
    ),
    "kubectl -n lineside apply -f deploy/examples/vllm.yaml": Way(),
    "kubectl -n lineside apply -f deploy/examples/resources.yaml": Way(
        current="kubectl -n lineside apply -f deploy/examples/resources.yaml"
    ),
    "lineside doctor --kubernetes": Way(),
    "kubectl -n lineside port-forward deploy/lineside-coordinator 9090 &": Way(
        small="", why="hollow nodes run no containers"
    ),
    "export LINESIDE_ADMIN_TOKEN=$(kubectl -n lineside get secret lineside-tokens"
    " -o jsonpath='{.data.admin-token}' | base64 -d)": Way(),
    "lineside get engines": Way(small="", why="there is no coordinator to ask, see above"),
    "kubectl -n lineside get lineside": Way(),
    "kubectl -n lineside port-forward svc/lineside 8080:80 &": Way(
        small="", why="hollow nodes run no containers"
    ),
    "curl http://127.0.0.1:8080/v1/models": Way(small="", why="there is nobody to ask, see above"),
}
