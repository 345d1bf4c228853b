"""Requests to an API server, and its watches, over connections that are kept.

The one client: the coordinator's reflector, the check of agents' tokens and the doctor ask by it.
It knows nothing of how to log in: `login` does. Lines are put together here, since aiohttp's own
reader gives up at a line of twice its buffer.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from urllib.parse import urlencode

import aiohttp
import msgspec

from coordinator.kube.api import JSON, Answer, Api, ApiAway, Body, Query, Refused, Untrusted
from coordinator.kube.login import Access, CannotLogIn, Login, login
from coordinator.kube.settings import Kubernetes

ANSWER_S = 20.0
"""For one answer; a list of five hundred pods takes a second."""

CONNECT_S = 5.0

MAX_LINE_BYTES = 8 * 2**20
"""Of one event: an object is 1.5 MiB at most, as etcd takes no more."""

MAX_BODY_BYTES = 64 * 2**20
"""Of one answer: a page of five hundred objects is far smaller."""

LOST = (CannotLogIn, OSError, aiohttp.ClientError, TimeoutError, ssl.SSLError)


async def connected(settings: Kubernetes) -> Api:
    """Return the API server that the settings name, not asked yet. Raises `OSError`."""
    try:
        by = login(settings)
        await by.access()
    except CannotLogIn as error:
        raise OSError(f"cannot log in to the cluster: {error}") from error
    return KubeApi(by)


class KubeApi:
    """One API server. Made on the event loop that asks it."""

    def __init__(self, by: Login) -> None:
        self._by = by
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # each watch keeps a connection
            trust_env=by.uses_environment,
            read_bufsize=2**21,  # an event may be that long
        )

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
        except LOST as error:
            raise _away(error) from error

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
        except LOST as error:
            raise _away(error) from error

    async def close(self) -> None:
        """Let go of all connections."""
        await self._session.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: Body | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send a request; once more where the login has changed that the server does not know."""

        async def sent(by: Access) -> aiohttp.ClientResponse:
            headers = {"Accept": JSON, "Content-Type": content_type}
            if by.authorization is not None:
                headers["Authorization"] = by.authorization
            return await self._session.request(
                method,
                by.url + path + (f"?{urlencode(query)}" if query else ""),
                headers=headers,
                data=msgspec.json.encode(body) if body is not None else None,
                timeout=limits,
                ssl=by.tls,
                server_hostname=by.server_name,
                proxy=by.proxy,
                allow_redirects=method == "GET",  # a process behind the proxy may want a slash
            )

        access = await self._by.access()
        answer = await sent(access)
        if answer.status == 401 and (renewed := await self._by.after_refusal(access)) is not None:
            answer.close()
            answer = await sent(renewed)
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


def _away(error: Exception) -> ApiAway:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Untrusted("its certificate is not trusted")
    return ApiAway(_why(error))


def _why(error: Exception) -> str:
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
