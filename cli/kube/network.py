"""Who may reach a pod's port, as NetworkPolicies have it. Asks nobody.

A rule that goes by addresses or by labels of namespaces that were not looked at may let somebody
in: it is then not known whether it does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.kube.look import Process

NAME_LABEL = "kubernetes.io/metadata.name"
"""The one label that every namespace has."""

Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reach:
    """Who may reach one port. `None`: that cannot be told."""

    everybody: bool
    agents: bool | None


def reach_of(
    policies: Sequence[Mapping[str, Any]],
    pod: Mapping[str, Any],
    port: int,
    agents: Sequence[Process],
) -> Reach:
    """Return who may reach a port, where the cluster's network enforces its policies."""
    chosen = [each for each in policies if selects(each, pod)]
    if not chosen:
        return Reach(everybody=True, agents=True)
    rules = [rule for each in chosen for rule in _rules(each, pod, port)]
    if any(not rule.get("from") for rule in rules):
        return Reach(everybody=True, agents=True)
    peers = [peer for rule in rules for peer in rule["from"]]
    if not agents:
        return Reach(False, None)
    home = str(pod["metadata"]["namespace"])
    lets = [_lets_in(peer, agents[0].pod, home) for peer in peers]
    if any(each is True for each in lets):
        return Reach(False, True)
    return Reach(False, None if any(each is None for each in lets) else False)


def selects(policy: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether a policy is about what comes into a pod."""
    spec = policy.get("spec", {})
    if policy["metadata"].get("namespace") != pod["metadata"].get("namespace"):
        return False
    if "Ingress" not in (spec.get("policyTypes") or ["Ingress"]):
        return False
    return matches(spec.get("podSelector") or {}, pod["metadata"].get("labels") or {})


def _rules(policy: Mapping[str, Any], pod: Mapping[str, Any], port: int) -> Iterator[Rule]:
    named = {
        str(each.get("name")): each.get("containerPort")
        for container in pod["spec"].get("containers", ())
        for each in container.get("ports", ())
    }
    for rule in policy.get("spec", {}).get("ingress") or ():
        ports = rule.get("ports") or ()
        if not ports or any(_is_port(each, port, named) for each in ports):
            yield rule


def _is_port(said: Mapping[str, Any], port: int, named: Mapping[str, Any]) -> bool:
    if said.get("protocol", "TCP") != "TCP":
        return False
    first = said.get("port")
    if first is None:
        return True
    first = named.get(first) if isinstance(first, str) else first
    if first is None:
        return False
    return int(first) <= port <= int(said.get("endPort", first))


def _lets_in(peer: Mapping[str, Any], agent: Mapping[str, Any], home: str) -> bool | None:
    if "ipBlock" in peer:
        return None
    meta = agent["metadata"]
    if "namespaceSelector" in peer:
        selector = peer["namespaceSelector"] or {}
        if selector and set(_names(selector)) - {NAME_LABEL}:
            return None
        if not matches(selector, {NAME_LABEL: str(meta["namespace"])}):
            return False
    elif meta["namespace"] != home:
        return False
    return matches(peer.get("podSelector") or {}, meta.get("labels") or {})


def _names(selector: Mapping[str, Any]) -> Iterator[str]:
    yield from selector.get("matchLabels") or ()
    yield from (str(each["key"]) for each in selector.get("matchExpressions") or ())


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions") or ())


def _holds(said: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(said["key"]), said.get("values") or ()
    match said["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None
