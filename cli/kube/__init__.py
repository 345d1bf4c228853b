"""`lineside doctor --kubernetes`: looks at a cluster through its API server, and judges it."""

from datetime import datetime

from cli.examination import Report
from cli.kube.api import Unreachable
from cli.kube.judge import judged
from cli.kube.look import look
from cli.kube.server import opened

__all__ = ["NAMESPACE", "Unreachable", "examine"]

NAMESPACE = "lineside"
"""Where the manifests put everything."""


async def examine(
    kubeconfig: str | None, context: str | None, namespace: str, release: str, now: datetime
) -> list[Report]:
    """Look at a cluster and report on each part. Raises `Unreachable`."""
    async with opened(kubeconfig, context) as api:
        return judged(await look(api, namespace), release, now)
