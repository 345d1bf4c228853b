"""Requests to an API server through the Kubernetes client's transport. Alone imports that client.

It knows how to log in (kubeconfig, a pod's own token, plugins) and keeps connections. Its watch is
not used: it ends for good when a server restarts.
"""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from coordinator.kube.api import JSON, Answer, Api, ApiAway, Body, Query, Refused
from coordinator.kube.settings import Kubernetes
from lineside import logs
from lineside.nodes import parse

log = logs.get("coordinator.kube.transport")

ANSWER_S = 20.0
"""For one answer; a list of five hundred pods takes a second."""

CONNECT_S = 5.0

RENEW_S = 60.0
"""Between two looks at a kubeconfig's login. A plugin runs only when its token has run out."""

MAX_LINE_BYTES = 8 * 2**20
"""Of one event: an object is 1.5 MiB at most, as etcd takes no more."""

MAX_BODY_BYTES = 64 * 2**20
"""Of one answer: a page of five hundred objects is far smaller."""

USUAL = "~/.kube/config"

_CLUMSY = (AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""What the client raises of a kubeconfig that lacks something, for want of a look at it."""

LOST = (OSError, aiohttp.ClientError, TimeoutError, ssl.SSLError)


async def connected(settings: Kubernetes) -> Api:
    """Return the API server that the settings name, not asked yet. Raises `OSError`."""
    # Here, since the import takes 35 MB and half a second: for those alone who read a cluster.
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    try:
        if settings.access == "in-cluster":
            config.load_incluster_config(client_configuration=configuration)
        else:
            _check(settings.kubeconfig or os.environ.get("KUBECONFIG") or USUAL)
            loader = await config.load_kube_config(
                config_file=settings.kubeconfig,
                context=settings.context,
                client_configuration=configuration,
                persist_config=False,
            )
            configuration.refresh_api_key_hook = _renewing(loader.load_and_set)
    except (config.ConfigException, OSError) as error:
        raise OSError(f"cannot log in to the cluster: {error}") from error
    except _CLUMSY:
        raise OSError("cannot log in to the cluster: the kubeconfig lacks something") from None
    configuration.connection_pool_maxsize = 0  # without a bound: each watch keeps a connection
    return KubeApi(client.ApiClient(configuration), config.ConfigException)


def _check(files: str) -> None:
    """Raise `OSError` where none is there, or for what is no YAML: the client tells neither."""
    paths = [Path(name).expanduser() for name in files.split(os.pathsep) if name]
    if not any(path.exists() for path in paths):
        raise OSError(f"there is no file {files}")
    for path in paths:
        if path.exists() and (findings := parse(path.read_bytes(), str(path)).findings):
            raise OSError(str(findings[0]))


def _renewing(load: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Return what logs in again now and then: tokens of plugins and of files run out."""
    loaded_at = time.monotonic()

    async def renew(configuration: Any) -> None:
        nonlocal loaded_at
        if (now := time.monotonic()) - loaded_at >= RENEW_S:
            loaded_at = now
            await load(configuration)

    return renew


class KubeApi:
    """One API server."""

    def __init__(self, client: Any, unusable: type[Exception]) -> None:
        """`unusable` is what logging in again, as tokens run out, may raise."""
        self._client = client
        self._lost = (*LOST, unusable)

    async def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Body | None = None,
        content_type: str = JSON,
    ) -> Answer:
        """Send one request. Raises `ApiAway`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._send(method, path, query, body, content_type, _SHORT)
                return await _read(answer)
        except self._lost as error:
            raise ApiAway(_why(error)) from error

    async def watch(self, path: str, query: Query, idle_s: float) -> AsyncGenerator[bytes, None]:
        """Yield an empty line once a watch is open, then each line of it."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=idle_s)
        try:
            answer = await self._send("GET", path, query, None, JSON, limits)
            try:
                if answer.status != 200:
                    raise Refused(await _read(answer))
                _keep_alive(answer)
                yield b""
                async for line in _lines(answer):
                    yield line
            finally:
                answer.close()
        except self._lost as error:
            raise ApiAway(_why(error)) from error

    async def close(self) -> None:
        """Let go of all connections."""
        await self._client.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: Body | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        answer: aiohttp.ClientResponse = await self._client.call_api(
            path,
            method,
            query_params=list(query),
            header_params={"Accept": JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=limits,
        )
        return answer


_SHORT = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)


async def _read(answer: aiohttp.ClientResponse) -> Answer:
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > MAX_BODY_BYTES:
            answer.close()
            raise OSError(f"an answer is larger than {MAX_BODY_BYTES >> 20} MiB")
    said = answer.headers.get("retry-after", "")
    wait_s = float(said) if said.isascii() and said.isdigit() else 0.0
    return Answer(answer.status, bytes(body), wait_s)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield whole lines. aiohttp's own reader gives up at a line of twice its buffer."""
    rest = bytearray()
    async for part in answer.content.iter_any():
        rest += part
        *lines, tail = rest.split(b"\n") if b"\n" in part else (rest,)
        for line in lines:
            if line:
                yield bytes(line)
        rest = tail
        if len(rest) > MAX_LINE_BYTES:
            raise OSError(f"an event is larger than {MAX_LINE_BYTES >> 20} MiB")
    if rest.strip():
        raise OSError("it broke off within an event")


def _keep_alive(answer: aiohttp.ClientResponse) -> None:
    """Have a connection whose other end is gone noticed in half a minute, with nothing to read."""
    transport = answer.connection.transport if answer.connection is not None else None
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if (option := getattr(socket, name, None)) is not None:  # Linux has all three
            found.setsockopt(socket.IPPROTO_TCP, option, value)


def _why(error: BaseException) -> str:
    """Say what happened, without an object that the message may repeat."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorError(os_error=cause):
            return f"cannot connect: {cause.strerror or cause}"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "the connection broke"
        case _:
            return f"{str(error)[:200] or type(error).__name__}"
