"""A routed request to its backend: connect, send, and take a fallback where that is safe.

Turns every way in which a send can fail into an `Attempt`; whether another try follows is the
service's word. Never called again once an engine has answered, unless with a 503.
"""

import re
from collections.abc import Callable, Iterable
from io import BytesIO

import aiohttp
from multidict import CIMultiDict

from coordinator.attempts import Attempt, Repeat
from coordinator.config import Timeouts
from coordinator.credentials import Credentials
from coordinator.engines import Engine
from coordinator.providers import ProviderKeys
from coordinator.refusal import Refusal, UpstreamBroken, UpstreamUnreachable
from coordinator.service import Routed, Service
from lineside.ids import EngineId
from policies.reserved import HEADERS, HOP_BY_HOP

KEEP_ALIVE_S = 4.0
"""Idle connections are let go before the engine does it: uvicorn closes them after 5 s."""

WHOLE_BYTES = 2**20
"""A longer body is handed to the socket in parts, so that nothing else waits for it."""

UNAVAILABLE = frozenset({503})
"""The one answer of an engine after which another backend is tried."""

PROVIDER_UNAVAILABLE = frozenset({429, 503, 529})
"""Answers of a provider that did not run the request."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

RANK = "x-data-parallel-rank"

_NOT_FORWARDED = HOP_BY_HOP | {
    "accept-encoding",  # the stream must be readable
    "authorization",  # the client's key is for this door
    "content-encoding",
    "content-length",
    "cookie",
    "expect",
    "host",
    RANK,  # the decision's, not the client's
    "x-request-id",
    "x-vllm-priority",
}


class Dispatcher:
    """Sends requests to engines."""

    def __init__(
        self,
        service: Service,
        session: aiohttp.ClientSession,
        timeouts: Timeouts,
        suspect: Callable[[EngineId], None],
        provider_keys: ProviderKeys,
    ) -> None:
        """`suspect` hears of engines that a request could not connect to."""
        self._service = service
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s)
        self._suspect = suspect
        self._provider_keys = provider_keys

    async def send(
        self, routed: Routed, path: str, headers: CIMultiDict[str]
    ) -> aiohttp.ClientResponse | Refusal:
        """Return the first backend's answer, or why there is none."""
        while True:
            answer = await self._try(routed, path, headers)
            if not isinstance(answer, Attempt):
                if not self._elsewhere(routed, answer.status):
                    return answer
                answer.close()
                continue
            if not answer.reached:
                self._suspect(answer.engine)
            if not self._service.fallback(routed, answer):
                if answer.repeat is Repeat.SAFE:
                    return UpstreamUnreachable(len(routed.record.attempts))
                return UpstreamBroken()

    def _elsewhere(self, routed: Routed, status: int) -> bool:
        """Move on from a backend that says that it did not take the request."""
        kind = routed.candidate.type
        refusing = UNAVAILABLE if kind == "engine" else PROVIDER_UNAVAILABLE
        if status not in refusing:
            return False
        attempt = Attempt(routed.target.id, Repeat.SAFE, f"the {kind} answered {status}")
        return self._service.fallback(routed, attempt)

    async def _try(
        self, routed: Routed, path: str, headers: CIMultiDict[str]
    ) -> aiohttp.ClientResponse | Attempt:
        target, asked = routed.target, routed.verdict.set
        if isinstance(target, Engine):
            sent = headers.copy()
            if target.rank is not None:
                sent[RANK] = str(target.rank)
        else:
            sent = self._provider_keys.headers(target, routed.request.stream)
        for name, value in ((asked.headers if asked else None) or {}).items():
            # Lint says so; here it holds whatever got past it.
            if name.lower() not in HEADERS and _NAME.fullmatch(name) and value.isprintable():
                sent[name] = value
        try:
            return await self._session.post(
                target.base_url + path,
                data=BytesIO(routed.body) if len(routed.body) > WHOLE_BYTES else routed.body,
                headers=sent,
                timeout=self._timeout,
                allow_redirects=False,
            )
        except aiohttp.ConnectionTimeoutError:
            return Attempt(target.id, Repeat.SAFE, "no connection in time", False)
        except aiohttp.ClientConnectorError:
            return Attempt(target.id, Repeat.SAFE, "connection refused", False)
        except aiohttp.InvalidURL:
            return Attempt(target.id, Repeat.SAFE, "its address cannot be used", False)
        except aiohttp.ClientError:
            return Attempt(target.id, Repeat.UNCERTAIN, "the connection broke")


def session(credentials: Credentials) -> aiohttp.ClientSession:
    """Return a session for engines. Unbounded: leases, not sockets, say how much is sent."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=KEEP_ALIVE_S, enable_cleanup_closed=False
        ),
        middlewares=credentials.middlewares(),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("user-agent",),
        read_bufsize=2**18,
        max_line_size=2**16,
        max_field_size=2**16,
    )


def forwarded(client_headers: Iterable[tuple[str, str]], request_id: str) -> CIMultiDict[str]:
    """Return the headers that an engine gets: the client's, less those that end here."""
    headers = CIMultiDict(client_headers)
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    for name in {name.lower() for name in headers}:
        if name in _NOT_FORWARDED or name in named or name.startswith("x-lineside-"):
            headers.popall(name)
    headers["accept-encoding"] = "identity"
    headers["x-request-id"] = request_id
    headers.setdefault("content-type", "application/json")
    return headers
