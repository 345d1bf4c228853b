"""Asks a real API server, with the credentials of a kubeconfig or of the pod that this runs in.

Shows no credential, and reads at most so much of an answer.
"""

import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config import ConfigException

from cli.kube.api import Answer, Unreachable

ANSWER_S = 15.0
"""For one answer; a process behind the proxy that hangs is one of those that do not answer."""

MAX_ANSWER_BYTES = 64 << 20
"""Ten thousand pods are a tenth of it."""

AUTH = ["BearerToken"]

MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount/token"


class Server:
    """One API server."""

    def __init__(self, api: client.ApiClient) -> None:
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
            answer = await self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json, text/plain;q=0.5, */*;q=0.1"},
                body=body,
                auth_settings=AUTH,
                _preload_content=False,
                _request_timeout=ANSWER_S,
            )
            async with answer:
                began = time.time()
                text = await answer.content.read(MAX_ANSWER_BYTES)
                while len(text) < MAX_ANSWER_BYTES and not answer.content.at_eof():
                    text += await answer.content.read(MAX_ANSWER_BYTES - len(text))
        except TimeoutError:
            if "/proxy/" in path:
                return Answer(504)
            raise Unreachable(f"the API server did not answer within {ANSWER_S:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"cannot reach the API server: {_why(error)}") from None
        if answer.status == 401:
            raise Unreachable("the API server does not know these credentials (401)")
        return Answer(answer.status, _read(text), (asked, began))


def _read(text: bytes) -> Any:
    said = text.decode(errors="replace")
    try:
        return json.loads(said)
    except ValueError:
        return said


def _why(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "there is no such host"
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error.strerror or "no connection").lower()
    return "the connection broke"


@asynccontextmanager
async def opened(kubeconfig: Path | None, context: str | None) -> AsyncIterator[tuple[Server, str]]:
    """Yield the API server, and the namespace that its context names. Raises `Unreachable`.

    Without a file and a context it is the server that this pod is of, in a pod.
    """
    settings, namespace = client.Configuration(), ""
    try:
        if kubeconfig is None and context is None and os.path.exists(MOUNTED):  # noqa: ASYNC240
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            file = str(kubeconfig) if kubeconfig else None
            loaded = await config.load_kube_config(file, context, client_configuration=settings)
            chosen: dict[str, Any] = loaded.current_context or {}
            namespace = str((chosen.get("context") or {}).get("namespace") or "")
    except ConfigException as error:
        raise Unreachable(f"no kubeconfig to go by: {str(error).splitlines()[0][:200]}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"the kubeconfig cannot be read ({type(error).__name__})"
        raise Unreachable(text) from None
    async with client.ApiClient(settings) as api:
        yield Server(api), namespace
