"""`lineside doctor --kubernetes`: looks at a cluster through its API server, and judges it."""

from datetime import datetime
from pathlib import Path

from cli.examination import Report
from cli.kube.api import Unreachable
from cli.kube.judge import judged
from cli.kube.look import look

__all__ = ["NAMESPACE", "Unreachable", "examine"]

NAMESPACE = "lineside"
"""Where the plain manifests put everything."""


async def examine(
    kubeconfig: Path | None, context: str | None, namespace: str | None, release: str, now: datetime
) -> list[Report]:
    """Look at a cluster and report on each part. Raises `Unreachable`."""
    from cli.kube import server  # half a second, which no other command should pay

    async with server.opened(kubeconfig, context) as (api, of_context):
        return judged(await look(api, namespace or of_context or NAMESPACE), release, now)
