"""Asks a real API server for the doctor, over the coordinator's own transport.

A process behind the proxy that hangs is one that does not answer; the API server itself must.
"""

import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from cli.kube.api import Answer, Unreachable
from coordinator.kube.api import Api, ApiAway
from coordinator.kube.login import HOST
from coordinator.kube.settings import Kubernetes
from coordinator.kube.transport import connected


class Server:
    """One API server."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def get(self, path: str, query: Mapping[str, str] = {}) -> Answer:
        """Read a path."""
        return await self._ask("GET", path, query, None)

    async def review(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Post an access review."""
        return await self._ask("POST", path, {}, body)

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> Answer:
        asked = time.time()
        try:
            answer = await self._api.ask(method, path, list(query.items()), body)
        except ApiAway as away:
            if "/proxy/" in path:
                return Answer(504)
            raise Unreachable(f"cannot reach the API server: {away}") from None
        if answer.status == 401:
            raise Unreachable("the API server does not know these credentials (401)")
        return Answer(answer.status, _read(answer.body), (asked, time.time()))


def _read(text: bytes) -> Any:
    said = text.decode(errors="replace")
    try:
        return json.loads(said)
    except ValueError:
        return said


@asynccontextmanager
async def opened(kubeconfig: str | None, context: str | None) -> AsyncIterator[Server]:
    """Yield the API server that these name. Raises `Unreachable`.

    Without either it is the one that this pod is of, in a pod.
    """
    in_pod = kubeconfig is None and context is None and HOST in os.environ
    settings = Kubernetes("in-cluster" if in_pod else "kubeconfig", kubeconfig, context)
    try:
        api = await connected(settings)
    except OSError as error:
        raise Unreachable(str(error).splitlines()[0][:300]) from None
    try:
        yield Server(api)
    finally:
        await api.close()
