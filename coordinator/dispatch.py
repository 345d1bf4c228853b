"""A routed request to its engine: connect, send, and take a fallback where that is safe.

Turns every way in which a send can fail into an `Attempt`; whether another try follows is the
service's word. Never called again once an engine has answered, unless with a 503.
"""

from collections.abc import Callable, Iterable
from io import BytesIO

import aiohttp
from multidict import CIMultiDict

from coordinator.attempts import Attempt, Repeat
from coordinator.config import Timeouts
from coordinator.credentials import Credentials
from coordinator.refusal import Refusal, UpstreamBroken, UpstreamUnreachable
from coordinator.service import Routed, Service
from lineside.ids import EngineId

KEEP_ALIVE_S = 4.0
"""Idle connections are let go before the engine does it: uvicorn closes them after 5 s."""

WHOLE_BYTES = 2**20
"""A longer body is handed to the socket in parts, so that nothing else waits for it."""

UNAVAILABLE = 503
"""The one answer of an engine after which another is tried."""

RANK = "x-data-parallel-rank"

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

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
    ) -> None:
        """`suspect` hears of engines that a request could not connect to."""
        self._service = service
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s)
        self._suspect = suspect

    async def send(
        self, routed: Routed, path: str, headers: CIMultiDict[str]
    ) -> aiohttp.ClientResponse | Refusal:
        """Return the first engine's answer, or why there is none. Adds to `headers`."""
        while True:
            answer = await self._try(routed, path, headers)
            if not isinstance(answer, Attempt):
                if answer.status != UNAVAILABLE or not self._elsewhere(routed):
                    return answer
                answer.close()
                continue
            if not answer.reached:
                self._suspect(answer.engine)
            if not self._service.fallback(routed, answer):
                if answer.repeat is Repeat.SAFE:
                    return UpstreamUnreachable(len(routed.record.attempts))
                return UpstreamBroken()

    def _elsewhere(self, routed: Routed) -> bool:
        """Move on from an engine that says that it did not take the request."""
        attempt = Attempt(routed.engine.id, Repeat.SAFE, f"the engine answered {UNAVAILABLE}")
        return self._service.fallback(routed, attempt)

    async def _try(
        self, routed: Routed, path: str, headers: CIMultiDict[str]
    ) -> aiohttp.ClientResponse | Attempt:
        engine = routed.engine
        if engine.rank is not None:
            headers[RANK] = str(engine.rank)
        else:
            headers.pop(RANK, None)
        try:
            return await self._session.post(
                engine.base_url + path,
                data=BytesIO(routed.body) if len(routed.body) > WHOLE_BYTES else routed.body,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
            )
        except aiohttp.ConnectionTimeoutError:
            return Attempt(engine.id, Repeat.SAFE, "no connection in time", False)
        except aiohttp.ClientConnectorError:
            return Attempt(engine.id, Repeat.SAFE, "connection refused", False)
        except aiohttp.ClientError:
            return Attempt(engine.id, Repeat.UNCERTAIN, "the connection broke")


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
