"""Decides for the Envoy door, and hears what became of its requests: the coordinator's side.

What is decided is the routing query's; what has no body to decide by goes to any engine that is
ready. Decisions are reported on as any gateway's are.
"""

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import msgspec

from coordinator import error_shapes
from coordinator.apis import COUNT_TOKENS, PATHS, Api, words_of
from coordinator.candidates import Candidate, Provider, spoken
from coordinator.canonical import Canonical
from coordinator.doors.callers import Caller, NotYours, tenant_of
from coordinator.doors.carriers import Carriage
from coordinator.doors.counting import body_to_count, counters
from coordinator.doors.envoy import contract
from coordinator.doors.envoy.addresses import Addresses
from coordinator.doors.envoy.exchange import Exchange, Terms
from coordinator.doors.envoy.following import Following, Interest
from coordinator.doors.envoy.messages import (
    Aborted,
    Broken,
    Finished,
    FirstToken,
    Note,
    Picked,
    Question,
    Rejected,
    Served,
    Told,
    Unseen,
)
from coordinator.doors.envoy.reading import Carried, Native, Reading
from coordinator.doors.holding import Holding
from coordinator.doors.listing import Listing, listed
from coordinator.doors.offers import PRIVATE, Asking, Offer
from coordinator.doors.parsing import joined, parsed, request_id_of
from coordinator.doors.query import Answered, Queries, Query, Refused
from coordinator.doors.reports import Event, Report
from coordinator.doors.stored import Holder
from coordinator.engines import Engine
from coordinator.limits import NOBODY
from coordinator.refusal import (
    BodyWithheld,
    NoEngineReady,
    NotCounted,
    NotFound,
    NotServed,
    Refusal,
    Reply,
    UnknownModel,
)
from coordinator.watch import WatchedService

JSON = ("content-type", "application/json")

MODEL_NAME = "x-gateway-model-name"
"""A header in which a filter before this one names the model, where bodies do not come by here."""

STORED = re.compile("/v1/responses/([^/]+)(?:/cancel)?")
"""Paths about a response that an engine keeps."""

WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that ask an engine for nothing that it would have to compute, or change."""

SERVED_AS = ("picked", "fallback", "elsewhere")
"""Where a gateway says that a request went, beside where it was told to send it."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator wants of this door, beside its terms."""

    endpoints: int = 1
    """At most so many are named."""
    tenant_header: str | None = None
    """In which a gateway says whose a request is."""


class Books:
    """What all desks have in common."""

    def __init__(
        self,
        *,
        service: WatchedService,
        queries: Queries,
        holding: Holding,
        listing: Listing,
        addresses: Addresses,
        terms: Terms,
        wishes: Wishes,
        choose: Callable[[list[Engine]], Engine] = random.choice,
    ) -> None:
        self.served: Counter[str] = Counter()
        """By `SERVED_AS`; `elsewhere` is a misroute."""
        self.service = service
        self.queries = queries
        self.holding = holding
        self.listing = listing
        self.addresses = addresses
        self.terms = terms
        self.wishes = wishes
        self.choose = choose


class Desk:
    """The desk of one caller."""

    def __init__(self, books: Books, caller: Caller) -> None:
        self._books = books
        self._caller = caller
        self._queries = books.queries
        self._service = books.service

    async def ask(self, question: Question) -> Picked | Rejected:
        """Decide a request."""
        asked_for = contract.value(question.headers, contract.ASKED_FOR)
        if self._books.terms.conformance and asked_for:
            return Picked(self._named(asked_for))
        if stored := STORED.fullmatch(question.path.partition("?")[0]):
            return await self._holder(question, unquote(stored[1]))
        if question.method in ("GET", "HEAD") and (about := listed(question.path)) is not None:
            return self._list(question, about[0])
        if question.method in WITHOUT_BODY:
            return self._anyone(question, None)
        if question.body is None:
            return self._unread(question)
        if question.method == "POST" and question.path.partition("?")[0] == COUNT_TOKENS:
            return await self._count(question)
        answer = await self._queries.ask(self._query(question))
        if isinstance(answer, Refused):
            return _rejected(answer)
        return self._picked(answer, question, _reading(answer, question))

    def refuse(self, refusal: Refusal, exchange: Exchange) -> Rejected:
        """Put a refusal into the shape of the client's API, and record it."""
        return self._refused(exchange.question(None), refusal)

    def follow(self, picked: Picked) -> Following:
        """Return what reads the answer to a request that was sent on."""
        terms = self._books.terms
        return Following(
            terms.interest,
            picked.endpoints,
            reading=picked.reading or Native(),
            decision=picked.decision,
            engine=picked.engine,
            shows_served=terms.conformance,
        )

    def note(self, following: Following, note: Note) -> None:
        """Hear what became of a request."""
        if isinstance(note, Served):
            if following.endpoints:
                self._books.served[_served_as(note)] += 1
        elif following.decision is not None:
            served = following.served and self._books.addresses.named(following.served)
            report = _report(following.decision, note, served)
            self._queries.reports.report(report, self._caller.name)

    def _query(self, question: Question) -> Query:
        wishes = self._books.wishes
        tenant = NOBODY
        if wishes.tenant_header is not None:
            said = contract.value(question.headers, wishes.tenant_header) or ""
            named = tenant_of(self._caller, said)
            tenant = NOBODY if isinstance(named, NotYours) else named
        return Query(
            method=question.method,
            path=question.path,
            headers=[each for each in question.headers if each[0] != wishes.tenant_header],
            body=question.body or b"",
            tenant=tenant,
            subset=self._books.addresses.within(question.subset),
            nowhere=self._books.addresses.unknown(),
            caller=self._caller.name,
            wants_keys=self._caller.wants_keys,
            fallbacks=wishes.endpoints - 1,
            translates=question.readable,
            meters=question.readable and self._books.terms.interest is Interest.USAGE,
        )

    def _refused(self, question: Question, refusal: Refusal) -> Rejected:
        return _rejected(self._queries.refuse(self._query(question), refusal))

    def _picked(self, answer: Answered, question: Question, reading: Reading) -> Picked:
        first, *others = answer.offers
        target, sets = first.candidate.target, dict(first.set_headers)
        told = self._books.addresses.told
        offers = [each.candidate.target.endpoint for each in (first, *_alike(first, others))]
        endpoints = tuple(told(each) or each for each in offers)
        backend = None
        if isinstance(target, Provider):
            sets[":path"] = _path_of(first.url)
            endpoints, backend = (), target.id
        if reading.is_foreign or self._books.terms.interest is Interest.USAGE:
            sets["accept-encoding"] = "identity"  # what is read must be readable
        return Picked(
            endpoints=endpoints,
            backend=backend,
            body=None if first.body == question.body else first.body,
            set_headers=tuple(sets.items()),
            remove_headers=first.remove_headers,
            decision=answer.decision_id,
            engine=target.id,
            reading=reading,
        )

    def _unread(self, question: Question) -> Picked | Rejected:
        """Decide where the body does not come by here: only if nothing depends on it."""
        path = question.path.partition("?")[0]
        if path not in PATHS:
            return self._refused(question, NotFound())
        rules, model = self._service.decider.rules, contract.value(question.headers, MODEL_NAME)
        models = rules.bench().layout.inventory.models
        if not rules.policies.rules and (model is not None or len(models) == 1):
            return self._anyone(question, model)
        return self._refused(question, BodyWithheld())

    async def _holder(self, question: Question, response: str) -> Picked | Rejected:
        """Choose the engine that holds a stored response, of the same tenant."""
        holder = await self._books.holding.find(response, self._query(question).tenant)
        if not isinstance(holder, Holder):
            return self._refused(question, holder)
        if not holder.is_engine:  # a provider: it knows the response, and not who asks
            return self._refused(question, NotServed(holder.model))
        if (endpoint := self._books.addresses.told(holder.endpoint)) is None:
            return self._refused(question, NoEngineReady(holder.model))
        return Picked((endpoint,), remove_headers=PRIVATE)

    def _list(self, question: Question, name: str | None) -> Rejected:
        """Answer with the names that requests may use, as our own gateway does."""
        api = words_of("", {header for header, _ in question.headers})
        shown = self._books.listing.answer(name, api)
        if isinstance(shown, UnknownModel):
            return self._refused(question, shown)
        headers = (JSON, *error_shapes.headers(api, _request_id(question)).items())
        return Rejected(200, headers, msgspec.json.encode(shown), "listed")

    async def _count(self, question: Question) -> Picked | Rejected:
        """Let somebody count who may see the message, as at our own gateway."""
        query, api = self._query(question), Api.ANTHROPIC_MESSAGES
        read = await parsed(api, joined(query.headers), query.body, self._service.heavy)
        if not isinstance(read, Canonical):
            return self._refused(question, read)
        may = await counters(self._service, read, query.tenant)
        if isinstance(may, Reply):
            told = error_shapes.body(may, api, _request_id(question))
            return Rejected(may.status, (JSON, *may.headers.items()), told, may.reason)
        for each in may.engines:
            if (endpoint := self._reachable(question, each.target.endpoint)) is not None:
                body = await body_to_count(self._service, read, each)
                return Picked((endpoint,), body=body, remove_headers=PRIVATE)
        if may.own is not None:
            return Rejected(200, (JSON,), b'{"input_tokens":%d}' % may.own, "counted")
        if may.providers:
            return await self._count_outside(question, read, may.providers[0])
        return self._refused(question, NotCounted(read.model))

    async def _count_outside(self, question: Question, request: Canonical, by: Candidate) -> Picked:
        """Let the gateway ask a provider."""
        body, request_id = await body_to_count(self._service, request, by), _request_id(question)
        asking = Asking(
            request.api, question.path, False, request.headers, request_id, "", None, counts=True
        )
        offer = self._queries.offered(self._query(question), by, body, asking)
        carriage = Carriage(request.api, request.api, request.model, request_id, 0, is_foreign=True)
        return Picked(
            endpoints=(),
            backend=by.target.id,
            body=offer.body,
            set_headers=(*offer.set_headers, (":path", _path_of(offer.url))),
            remove_headers=offer.remove_headers,
            engine=by.target.id,
            reading=Carried(carriage, usage_asked=True, request_id=request_id),
        )

    def _anyone(self, question: Question, model: str | None) -> Picked | Rejected:
        """Choose the engine that has the least to do; nothing is accounted."""
        now = self._service.clock.monotonic()
        able = [
            view.engine
            for view in self._service.cluster.snapshot(now).engines
            if not (view.away or view.asleep or view.failing)
            and (model is None or view.engine.serves(model))
            and self._reachable(question, view.engine.endpoint) is not None
        ]
        if not able:
            return self._refused(question, NoEngineReady(model or "this request"))
        queues = self._service.inflight.queues([engine.id for engine in able], now)
        least = min(queue.outstanding for queue in queues)
        idlest = [e for e, queue in zip(able, queues, strict=True) if queue.outstanding == least]
        endpoint = self._reachable(question, self._books.choose(idlest).endpoint)
        assert endpoint is not None  # as above
        return Picked((endpoint,), remove_headers=PRIVATE)

    def _reachable(self, question: Question, endpoint: str) -> str | None:
        """Return what the gateway calls an endpoint; `None`: it cannot, or may not, use it."""
        told, hint = self._books.addresses.told(endpoint), question.subset
        return told if told is None or hint is None or contract.allows(hint, told) else None

    def _named(self, asked_for: str) -> tuple[str, ...]:
        """Return the endpoints that a test names, hosts with all their ports."""
        engines, told = self._service.cluster.assigned(), self._books.addresses.told
        known = [told(engine.endpoint) or engine.endpoint for engine in engines]
        found = []
        for name in contract.listed(asked_for):
            ports = [endpoint for endpoint in known if contract.host(endpoint) == name]
            found += ports or [name]
        return tuple(found)


def _alike(first: Offer, others: list[Offer]) -> list[Offer]:
    """Return the fallbacks that the same request can go to: a gateway changes it only once."""
    return [
        each
        for each in others
        if isinstance(each.candidate.target, Engine)
        and (each.body, dict(each.set_headers), each.remove_headers)
        == (first.body, dict(first.set_headers), first.remove_headers)
    ]


def _reading(answer: Answered, question: Question) -> Reading:
    record, request = answer.routed.record, answer.routed.request
    backend = spoken(answer.routed.target, request.api) or request.api
    is_foreign = isinstance(answer.routed.target, Provider)
    carriage = Carriage(request.api, backend, request.model, record.id, int(record.at), is_foreign)
    asked = request.usage_asked
    if not carriage.is_native:  # what is translated is written anew, with usage only if asked for
        asked = asked and b'"include_usage"' in (question.body or b"")
    return Carried(carriage, asked, record.request_id)


def _path_of(url: str) -> str:
    where = urlsplit(url)
    return where.path + (f"?{where.query}" if where.query else "")


def _request_id(question: Question) -> str:
    return request_id_of(contract.value(question.headers, "x-request-id") or "")


def _rejected(refused: Refused) -> Rejected:
    return Rejected(refused.status, refused.headers, refused.body, refused.reason)


def _served_as(note: Served) -> str:
    if note.place is None:
        return "elsewhere"
    return "fallback" if note.place else "picked"


def _report(decision: str, note: Told, backend: str | None) -> Report:
    match note:
        case FirstToken():
            return Report(decision, Event.FIRST_TOKEN, backend=backend)
        case Finished(status, usage, finish):
            return Report(
                decision, Event.FINISHED, usage=usage, status=status, backend=backend, finish=finish
            )
        case Broken():
            return Report(decision, Event.FAILED, backend=backend)
        case Aborted(usage):
            return Report(decision, Event.ABORTED, usage=usage, backend=backend)
        case Unseen(status):
            return Report(decision, Event.UNSEEN, status=status, backend=backend)
