"""A routed request to its backend: connect, send, and take a fallback where that is safe.

Turns every way in which a send can fail into an `Attempt`; whether another try follows is the
service's word. Never called again once a backend has answered, unless it said that it does not take
the request.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO

import aiohttp
from aiohttp.base_protocol import BaseProtocol
from multidict import CIMultiDict
from yarl import URL

from coordinator.apis import METERED, Api
from coordinator.attempts import Attempt, Repeat
from coordinator.attempts import Fault as ProviderFault
from coordinator.candidates import Provider, spoken
from coordinator.config import Timeouts
from coordinator.credentials import Credentials
from coordinator.doors.offers import PRIVATE, RANK, REQUEST_ID, set_by
from coordinator.engines import Engine
from coordinator.large import embody
from coordinator.providers.cooldowns import asked_pause_s
from coordinator.providers.keys import ProviderKeys
from coordinator.refusal import (
    KEY_REFUSED,
    Refusal,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from coordinator.service import Routed, Service
from lineside.ids import EngineId
from policies.reserved import HOP_BY_HOP

KEEP_ALIVE_S = 4.0
"""Idle connections are let go before the engine does it: uvicorn closes them after 5 s."""

WHOLE_BYTES = 2**20
"""A longer body is handed to the socket in parts, so that nothing else waits for it."""

ERROR_BYTES = 2**20
"""A refusal that is read for what it refuses ends here."""

UNAVAILABLE = frozenset({503})
"""The one answer of an engine after which another backend is tried."""

PROVIDER_UNAVAILABLE = frozenset({429, 503, 529})
"""Answers of a provider that did not run the request."""

UNFIT = frozenset({400, 422})
"""Answers of a backend that refuses a part of the body."""

_STREAMS = {Api.BEDROCK_CONVERSE: "application/vnd.amazon.eventstream"}
"""What a stream is asked for as, where that is no `text/event-stream`."""

_NOT_FORWARDED = frozenset(
    {
        *HOP_BY_HOP,
        *PRIVATE,  # the client's keys are for this door
        "accept-encoding",  # the stream must be readable
        "content-encoding",
        "content-length",
        "expect",
        "host",
        RANK,  # the decision's, not the client's
        REQUEST_ID,
    }
)


class Dispatcher:
    """Sends requests to backends."""

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
        connect_s = timeouts.connect_s
        # Looking up a name counts too.
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s)
        self._suspect = suspect
        self._provider_keys = provider_keys

    async def send(
        self, routed: Routed, path: str, headers: CIMultiDict[str]
    ) -> aiohttp.ClientResponse | Refusal:
        """Return the first backend's answer, or why there is none.

        `path` and `headers` are the client's, for engines. A provider gets none of them but what
        says how its own API is to be (`Dialect.kept`).
        """
        stripped: EngineId | None = None
        while True:
            if (unfit := await embody(self._service, routed)) is not None:
                return unfit
            answer = await self._try(routed, path, headers)
            if isinstance(answer, Attempt):
                if not answer.reached and isinstance(routed.target, Engine):
                    self._suspect(answer.engine)
                if self._service.fallback(routed, answer):
                    continue
                return _unanswered(routed, answer)
            target = routed.target.id
            if stripped == target and answer.status < 300:
                now = self._service.clock.monotonic()
                self._service.bodies.capabilities.refused_usage(target, now)
            refused = self._refused(routed, answer)
            if refused is not None and self._service.fallback(routed, refused):
                answer.close()
            elif stripped != target and await self._is_unmetered_better(routed, answer):
                stripped = target
                answer.close()
            else:
                return answer

    def _refused(self, routed: Routed, answer: aiohttp.ClientResponse) -> Attempt | None:
        """Return the attempt that an answer comes to if its backend did not take the request."""
        kind, status = routed.candidate.type, answer.status
        if kind == "provider" and status in KEY_REFUSED:
            reason = f"the provider did not accept this gateway's key ({status})"
            return Attempt(routed.target.id, Repeat.SAFE, reason, fault=ProviderFault.KEY_REFUSED)
        if status not in (UNAVAILABLE if kind == "engine" else PROVIDER_UNAVAILABLE):
            return None
        return Attempt(
            routed.target.id,
            Repeat.SAFE,
            f"the {kind} answered {status}",
            fault=ProviderFault.BUSY,
            pause_s=asked_pause_s(answer.headers.get("retry-after"), self._service.clock.unix()),
        )

    async def _is_unmetered_better(self, routed: Routed, answer: aiohttp.ClientResponse) -> bool:
        """Ask a backend once more that refuses the usage which we, not the client, asked it for."""
        if answer.status not in UNFIT or not _is_metered(routed):
            return False
        if b"stream_options" not in await _peek(answer):
            return False
        reason = f"the {routed.candidate.type} refuses `stream_options`"
        return self._service.again(routed, Attempt(routed.target.id, Repeat.SAFE, reason))

    async def _try(
        self, routed: Routed, path: str, headers: CIMultiDict[str]
    ) -> aiohttp.ClientResponse | Attempt:
        target, body = routed.target, routed.body
        assert body is not None
        url: str | URL
        if isinstance(target, Engine):
            url, sent, limit_s = target.base_url + path, headers.copy(), None
            if target.rank is not None:
                sent[RANK] = str(target.rank)
        else:
            url, sent = await self._to_provider(routed, target, body)
            limit_s = target.timeout_s
            for name in target.dialect.kept(routed.request.api):
                if name in headers:
                    sent[name] = ",".join(headers.getall(name))
        sent.update(set_by(routed.verdict.set))
        try:
            async with asyncio.timeout(limit_s):
                return await self._session.post(
                    url,
                    data=BytesIO(body) if len(body) > WHOLE_BYTES else body,
                    headers=sent,
                    timeout=self._timeout,
                    allow_redirects=False,
                )
        except _NOT_REACHED as error:
            return Attempt(target.id, Repeat.SAFE, _why(error), False, ProviderFault.UNREACHABLE)
        except aiohttp.ClientError:
            broke = ProviderFault.BROKE
            return Attempt(target.id, Repeat.UNCERTAIN, "the connection broke", fault=broke)
        except TimeoutError:
            reason = f"no answer within {limit_s:g} s"
            return Attempt(target.id, Repeat.UNCERTAIN, reason, waited_s=limit_s)

    async def _to_provider(
        self, routed: Routed, target: Provider, body: bytes
    ) -> tuple[URL, CIMultiDict[str]]:
        """Return where a provider gets the request, and all headers that it gets with it."""
        api = spoken(target, routed.request.api)
        assert api is not None  # else it was no candidate
        streams, model = routed.request.stream, target.upstream[routed.candidate.model]
        url = target.base_url + target.dialect.path(api, model, streams)
        accept = _STREAMS.get(api, "text/event-stream") if streams else "application/json"
        headers = partial(self._provider_keys.headers, target, url, body, accept)
        # Signing reads all of it.
        return URL(url, encoded=True), await self._service.heavy.run(headers, len(body))


_UNREACHABLE: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ConnectionTimeoutError, "no connection in time"),
    (aiohttp.ClientConnectorDNSError, "its name cannot be resolved"),
    (aiohttp.ClientSSLError, "its certificate or TLS cannot be used"),
    (aiohttp.ClientConnectorError, "connection refused"),
    (aiohttp.InvalidURL, "its address cannot be used"),
)
"""Why a backend has seen nothing of a request. The first that fits: some are kinds of others."""

_NOT_REACHED = tuple(kind for kind, _ in _UNREACHABLE)


def _why(error: Exception) -> str:
    return next(words for kind, words in _UNREACHABLE if isinstance(error, kind))


def _unanswered(routed: Routed, last: Attempt) -> Refusal:
    if last.waited_s is not None:
        return UpstreamTimeout("total", last.waited_s)
    if last.repeat is Repeat.SAFE:
        return UpstreamUnreachable(len(routed.record.attempts))
    return UpstreamBroken()


def _is_metered(routed: Routed) -> bool:
    """Whether a stream is asked for its usage by us alone."""
    request = routed.request
    by_client = request.api in METERED and request.usage_asked
    return request.stream and spoken(routed.target, request.api) in METERED and not by_client


async def _peek(answer: aiohttp.ClientResponse) -> bytes:
    """Return an answer's body, and leave it to be read as if nobody had."""
    loop, read = asyncio.get_running_loop(), bytearray()
    again = aiohttp.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    try:
        while len(read) <= ERROR_BYTES and (part := await answer.content.readany()):
            read += part
    except aiohttp.ClientError as error:
        again.set_exception(error)
    except asyncio.CancelledError:
        answer.close()
        raise
    again.feed_data(bytes(read))
    again.feed_eof()
    answer.content = again
    return bytes(read)


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
    connection = ",".join(headers.getall("connection", ()))
    named = {name.strip().lower() for name in connection.split(",")}
    for name in {name.lower() for name in headers}:
        if name in _NOT_FORWARDED or name in named or name.startswith("x-lineside-"):
            headers.popall(name)
    headers["accept-encoding"] = "identity"
    headers[REQUEST_ID] = request_id
    headers.setdefault("content-type", "application/json")
    return headers
