"""Asks what the service accounts of coordinators and agents may do. Judges nothing."""

import asyncio
from collections.abc import Mapping
from typing import Any

from cli.kube import needs
from cli.kube.api import Asker
from cli.kube.needs import Need
from coordinator.config import Config
from coordinator.kube.settings import EVERY

Json = dict[str, Any]


async def rights_of(
    on: Asker, coordinators: list[Json], agents: list[Json], config: Config | None
) -> Mapping[tuple[str, Need], bool]:
    """Return whether an account has each right that it needs, and that nobody needs."""
    wanted: list[tuple[str, Need]] = []
    needed = needs.of_coordinators(
        reads_cluster=config is None or config.kubernetes.is_on,
        reviews_tokens=config is None or config.node_proof == "service-account",
        writes_costs=config is not None and config.kubernetes.pod_deletion_cost,
    )
    for pods, more in ((coordinators, True), (agents, False)):
        for pod in pods[:1]:
            account = str(pod["spec"].get("serviceAccountName", "default"))
            wanted += [(account, need) for need in needs.TOO_MUCH]
            if more and asks_api(pod):
                wanted += [(account, need) for need in needed]
    where = config.kubernetes.namespaces if config and config.kubernetes.is_on else ()
    asked = [
        (account, need, namespace)
        for account, need in wanted
        for namespace in (_where(need, where) or (on.namespace,))
    ]
    answers = await asyncio.gather(*(_allowed(on, *each) for each in asked))
    found: dict[tuple[str, Need], bool] = {}
    for (account, need, _), allowed in zip(asked, answers, strict=True):
        if allowed is not None:
            found[account, need] = found.get((account, need), True) and allowed
    return found


def _where(need: Need, namespaces: tuple[str, ...]) -> tuple[str, ...]:
    """Return where a right is needed; an empty name: in the whole cluster."""
    if need in needs.TOO_MUCH:
        return ()
    if need.resource == "tokenreviews":
        return ("",)
    return tuple("" if name == EVERY else name for name in namespaces)


def asks_api(pod: Json) -> bool:
    """Whether a pod is given a token to ask the API server with."""
    return pod["spec"].get("automountServiceAccountToken") is not False


async def _allowed(on: Asker, account: str, need: Need, namespace: str) -> bool | None:
    group = f"system:serviceaccounts:{on.namespace}"
    resource, _, below = need.resource.partition("/")
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{on.namespace}:{account}",
            "groups": ["system:serviceaccounts", group, "system:authenticated"],
            "resourceAttributes": {
                "namespace": namespace,
                "verb": need.verb,
                "group": need.group,
                "resource": resource,
                "subresource": below,
            },
        },
    }
    async with on.gate:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = await on.api.review(path, body)
    if answer.status not in (200, 201):
        on.blinds.note(answer, "what our processes may do", "create subjectaccessreviews")
        return None
    return bool(answer.said.get("status", {}).get("allowed"))
