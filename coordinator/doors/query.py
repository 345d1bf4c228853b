"""The routing query behind every door of a gateway that sends requests by itself.

A query comes in by path, headers and body, and goes through the one service; what comes out is
where the request may go, and how, or the client's answer instead. What became of it is told to
`reports`. Requests by which nothing is generated (lists, counts) are accounted nowhere.
No wire format is known here: doors translate.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from coordinator import error_shapes
from coordinator.apis import COUNT_TOKENS, PATHS, Api, words_of
from coordinator.attempts import BUDGET
from coordinator.bodies import CONVERTED_BYTES
from coordinator.candidates import Candidate
from coordinator.canonical import BadRequest, Canonical
from coordinator.doors.counting import body_to_count, counters
from coordinator.doors.holding import Holding
from coordinator.doors.listing import Listing, listed
from coordinator.doors.offers import Asking, Headers, Offer, offer, url_of
from coordinator.doors.parsing import joined, parsed, request_id_of
from coordinator.doors.reports import Reports
from coordinator.large import embody
from coordinator.limits import NOBODY, Usage
from coordinator.refusal import (
    BodyTooLarge,
    Draining,
    Fault,
    MethodNotAllowed,
    NotCounted,
    NotFound,
    Refusal,
    Reply,
    UnknownModel,
    to_reply,
)
from coordinator.service import Refused as ServiceRefused
from coordinator.service import Routed
from coordinator.targets import Reach, is_within
from coordinator.watch import WatchedService
from lineside import logs
from lineside.ids import TenantId

log = logs.get("coordinator.doors.query")

FALLBACKS = BUDGET - 1
"""Backends that are named beside the first: a gateway has the same budget of tries as we have."""

_JSON = "application/json"


class Keys(Protocol):
    """Where the credentials of backends are."""

    def __call__(self, candidate: Candidate, url: str, body: bytes) -> Mapping[str, str]:
        """Return the headers by which a backend knows us."""
        ...


class Query(msgspec.Struct, frozen=True):
    """A request that a gateway holds, and wants to know where to send."""

    method: str
    path: str
    """With its query, if it has one."""
    headers: Headers
    body: bytes
    tenant: TenantId = NOBODY
    subset: frozenset[str] | None = None
    """Endpoints, or hosts with all their ports, to choose from; `None`: all."""
    caller: str = ""
    """Who asks. Nobody else may report on what comes of it."""
    wants_keys: bool = False
    """The gateway is to be given the credentials of backends."""
    fallbacks: int = FALLBACKS
    """How many it can make use of."""
    translates: bool = False
    """The gateway's door puts answers of other APIs into the client's."""
    nowhere: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Endpoints that it cannot find, and why."""
    meters: bool = True
    """Streams are to report usage: the gateway takes out what the client has not asked for."""

    def __repr__(self) -> str:
        """Show nothing of what the client wrote."""
        return f"Query(method={self.method!r}, path={self.path!r}, {len(self.body)} bytes)"


class Answered(msgspec.Struct, frozen=True):
    """Where the request may go."""

    routed: Routed
    offers: tuple[Offer, ...]
    """The backend that it is accounted on, then its fallbacks in order."""

    @property
    def decision_id(self) -> str:
        """By which the gateway reports, and the record is found."""
        return self.routed.record.id


class Refused(msgspec.Struct, frozen=True):
    """The client's answer instead, in the shape of its API."""

    status: int
    headers: Headers
    body: bytes
    reason: str
    decision_id: str

    def __repr__(self) -> str:
        """Show nothing of what the client is told."""
        return f"Refused({self.status}, {self.reason!r})"


class Told(msgspec.Struct, frozen=True):
    """The client's answer, with status 200, where no backend is needed for it."""

    headers: Headers
    body: bytes
    decision_id: str = ""


class Countable(msgspec.Struct, frozen=True):
    """Who may count a message's tokens, in order. Nothing is accounted, nothing to be reported."""

    offers: tuple[Offer, ...]
    decision_id: str = ""


Asked: TypeAlias = Answered | Refused
Answer: TypeAlias = Asked | Told | Countable


class Queries:
    """Answers queries, and hands what was answered to `reports`, where it awaits its end."""

    def __init__(
        self,
        service: WatchedService,
        reports: Reports,
        body_limit_bytes: int,
        keys: Keys,
        holding: Holding,
        listing: Listing,
    ) -> None:
        self.reports = reports
        self.heavy = service.heavy
        self._service = service
        self._body_limit = body_limit_bytes
        self._keys = keys
        self._holding = holding
        self._listing = listing

    async def answer(self, query: Query) -> Answer:
        """Answer whatever our own gateway answers, as that does."""
        path = query.path.partition("?")[0]
        if (of := listed(path)) is not None:
            return self._list(query, *of)
        if path != COUNT_TOKENS:
            return await self.ask(query)
        request_id = _request_id(query.headers)
        try:
            return await self._count(query, request_id)
        except Exception:  # noqa: BLE001  as in `ask`
            return self._failed(query, request_id)

    async def ask(self, query: Query) -> Asked:
        """Decide. What is `Answered` is accounted until its end is reported, or it expires."""
        request_id = _request_id(query.headers)
        try:
            return await self._ask(query, request_id)
        except Exception:  # noqa: BLE001  a fault ends its query only
            return self._failed(query, request_id)

    def refuse(self, query: Query, refusal: Refusal) -> Refused:
        """Record a refusal that a door found by itself, and put it as the client's API does."""
        request_id = _request_id(query.headers)
        refused = self._service.refuse(refusal, query.tenant, request_id)
        return self._refused(query, refusal, request_id, refused.record.id)

    async def _ask(self, query: Query, request_id: str) -> Asked:
        if (api := PATHS.get(query.path.partition("?")[0])) is None:
            return self.refuse(query, NotFound())
        read = await self._read(query, api)
        if not isinstance(read, Canonical):
            return self.refuse(query, read)
        if not (query.meters or read.usage_asked) and read.stream:
            # As if the client had asked: nothing is added for us.
            read = replace(read, usage_asked=True)
        goes_on = read.previous_response
        subset = await self._holding.subset(goes_on, query.tenant, query.subset)
        if not (subset is None or isinstance(subset, frozenset)):
            return self.refuse(query, subset)
        reach = Reach(subset, query.translates, query.nowhere)
        routed = await self._service.route(read, query.tenant, request_id, reach)
        if isinstance(routed, ServiceRefused):
            return self._refused(query, routed.refusal, request_id, routed.record.id)
        # Small requests wait for nothing from here on; whatever comes, a lease gets into the table.
        try:
            if (unfit := await embody(self._service, routed)) is not None:
                self._service.failed(routed, unfit)
                return self._refused(query, unfit, request_id, routed.record.id)
            offering = partial(self._offers, query, read, routed, request_id)
            offers = await self.heavy.run(offering, len(read.raw), CONVERTED_BYTES)
        except asyncio.CancelledError:  # nobody waits for the answer any more
            self._service.aborted(routed, Usage(partial=True))
            raise
        except BaseException:
            self._service.failed(routed, Fault(request_id))
            raise
        self.reports.open(routed, [each.candidate for each in offers], query.caller)
        return Answered(routed, offers)

    def _list(self, query: Query, name: str | None) -> Told | Refused:
        if query.method.upper() != "GET":
            return self.refuse(query, MethodNotAllowed("GET"))
        api, request_id = _shape(query), _request_id(query.headers)
        shown = self._listing.answer(name, api)
        if isinstance(shown, UnknownModel):
            return self.refuse(query, shown)
        headers = {"content-type": _JSON, **error_shapes.headers(api, request_id)}
        return Told(tuple(headers.items()), msgspec.json.encode(shown))

    async def _count(self, query: Query, request_id: str) -> Countable | Told | Refused:
        read = await self._read(query, Api.ANTHROPIC_MESSAGES)
        if not isinstance(read, Canonical):
            return self.refuse(query, read)
        may = await counters(self._service, read, query.tenant)
        if isinstance(may, Reply):
            return self._replied(query, may, request_id, "")
        engines = _within(query.subset, may.engines)
        if not engines and may.own is not None:
            headers = {"content-type": _JSON, **error_shapes.headers(read.api, request_id)}
            return Told(tuple(headers.items()), b'{"input_tokens":%d}' % may.own)
        others = () if may.own is not None else _within(query.subset, may.providers)
        # A place is kept for who else counts: engines may be alike in that they do not.
        able = (*engines[: max(1, query.fallbacks)], *others)[: 1 + query.fallbacks]
        if not able:
            return self.refuse(query, NotCounted(read.model))
        asking = Asking(
            read.api, query.path, False, read.headers, request_id, "", None, counts=True
        )
        offers = [
            self.offered(query, each, await body_to_count(self._service, read, each), asking)
            for each in able
        ]
        return Countable(tuple(offers))

    async def _read(self, query: Query, api: Api) -> Canonical | Refusal:
        """Judge what can be judged before anything is parsed, then parse."""
        if query.method.upper() != "POST":
            return MethodNotAllowed("POST")
        if self._service.draining:
            return Draining()
        if len(query.body) > self._body_limit:
            return BodyTooLarge(self._body_limit)
        headers = joined(query.headers)
        kind = headers.get("content-type", _JSON)
        if kind.partition(";")[0].strip().lower() != _JSON:
            return BadRequest(f"send JSON, and say so: `content-type: {_JSON}`", None)
        return await parsed(api, headers, query.body, self._service.heavy)

    def _offers(
        self, query: Query, request: Canonical, routed: Routed, request_id: str
    ) -> tuple[Offer, ...]:
        asking = Asking(
            api=request.api,
            path=query.path,
            streams=request.stream,
            headers=request.headers,
            request_id=request_id,
            decision_id=routed.record.id,
            asked=routed.verdict.set,
        )
        assert routed.body is not None
        chosen = (routed.candidate, routed.body)
        others = self._service.fallbacks(routed, query.fallbacks)
        return tuple(self.offered(query, *each, asking) for each in (chosen, *others))

    def offered(self, query: Query, candidate: Candidate, body: bytes, asking: Asking) -> Offer:
        """Return how the asking gateway sends a request to a backend."""
        keys = None
        if query.wants_keys:
            keys = self._keys(candidate, url_of(candidate, asking), body)
        return offer(candidate, body, asking, keys)

    def _failed(self, query: Query, request_id: str) -> Refused:
        log.fault("query failed", request_id=request_id, path=query.path[:200])
        return self._refused(query, Fault(request_id), request_id, "")

    def _refused(
        self, query: Query, refusal: Refusal, request_id: str, decision_id: str
    ) -> Refused:
        return self._replied(query, to_reply(refusal), request_id, decision_id)

    def _replied(self, query: Query, reply: Reply, request_id: str, decision_id: str) -> Refused:
        api = _shape(query)
        headers = {"content-type": _JSON, **reply.headers, **error_shapes.headers(api, request_id)}
        if decision_id:
            headers["x-lineside-decision"] = decision_id
        body = error_shapes.body(reply, api, request_id)
        return Refused(reply.status, tuple(headers.items()), body, reply.reason, decision_id)


def _within(subset: frozenset[str] | None, these: Sequence[Candidate]) -> Sequence[Candidate]:
    return these if subset is None else [each for each in these if is_within(each.target, subset)]


def _request_id(headers: Headers) -> str:
    for name, value in headers:
        if name.lower() == "x-request-id":
            return request_id_of(value)
    return request_id_of("")


def _shape(query: Query) -> Api | None:
    """Return the API in whose words a client wants to be refused."""
    return words_of(query.path.partition("?")[0], {name.lower() for name, _ in query.headers})
