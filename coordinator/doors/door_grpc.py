"""The routing query over gRPC: `lineside.v1.Router`. Generated types stop here.

A caller that may not ask gets a gRPC status; a request that cannot be routed is an answer.
"""

from functools import lru_cache
from typing import TypeAlias

import grpc

from coordinator.doors.callers import (
    Caller,
    Callers,
    NotYours,
    Shown,
    Stranger,
    is_local,
    tenant_of,
)
from coordinator.doors.offers import Offer
from coordinator.doors.query import Answer, Queries, Query, Refused, Told
from coordinator.doors.reports import Event, Report
from coordinator.doors.together import Together
from coordinator.engines import Engine
from coordinator.limits import Usage
from lineside import logs
from lineside.v1 import router_pb2 as pb
from lineside.v1 import router_pb2_grpc as rpc

log = logs.get("coordinator.doors.door_grpc")

SERVICE = pb.DESCRIPTOR.services_by_name["Router"].full_name

MOST_SUBSET = 10_000
"""Endpoints of a subset; more are no subset."""

_EVENTS = {
    pb.ReportRequest.FIRST_TOKEN: Event.FIRST_TOKEN,
    pb.ReportRequest.FINISHED: Event.FINISHED,
    pb.ReportRequest.ABORTED: Event.ABORTED,
    pb.ReportRequest.FAILED: Event.FAILED,
    pb.ReportRequest.UNSEEN: Event.UNSEEN,
}

RouteContext: TypeAlias = "grpc.aio.ServicerContext[pb.RouteRequest, pb.RouteResponse]"
ReportContext: TypeAlias = "grpc.aio.ServicerContext[pb.ReportRequest, pb.ReportResponse]"
AnyContext: TypeAlias = "grpc.aio.ServicerContext[object, object] | RouteContext | ReportContext"


class RouterServicer(rpc.RouterServicer):
    """Answers gateways."""

    def __init__(self, queries: Queries, callers: Callers) -> None:
        self._queries = queries
        self._callers = callers
        self._together = Together()

    async def Route(self, request: pb.RouteRequest, context: RouteContext) -> pb.RouteResponse:
        """Decide one request, right after those that came with it."""
        await self._together.gather(len(request.body))
        answer = await self._route(request, context)
        await self._together.part()
        return answer

    async def _route(self, request: pb.RouteRequest, context: RouteContext) -> pb.RouteResponse:
        caller = await authenticated(self._callers, context)
        tenant = tenant_of(caller, request.tenant)
        if isinstance(tenant, NotYours):
            status = grpc.StatusCode
            code = status.INVALID_ARGUMENT if tenant.malformed else status.PERMISSION_DENIED
            await context.abort(code, tenant.text)
        if len(request.subset) > MOST_SUBSET:
            text = f"a subset has at most {MOST_SUBSET} endpoints"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        query = Query(
            method=request.method or "POST",
            path=request.path,
            headers=[(header.name, header.value) for header in request.headers],
            body=request.body,
            tenant=tenant,
            subset=frozenset(request.subset) if request.subset else None,
            caller=caller.name,
            wants_keys=caller.wants_keys,
            meters=request.meters,
        )
        return to_wire(await self._queries.answer(query))

    async def Report(self, request: pb.ReportRequest, context: ReportContext) -> pb.ReportResponse:
        """Take a word on a decision."""
        caller = await authenticated(self._callers, context)
        if (event := _EVENTS.get(request.event)) is None:
            known = ", ".join(pb.ReportRequest.Event.keys())
            text = f"there is no event {int(request.event)}; there are {known}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        self._queries.reports.report(_report(request, event), caller.name)
        return pb.ReportResponse()


async def authenticated(callers: Callers, context: AnyContext) -> Caller:
    """Return who calls; end the call with `UNAUTHENTICATED` where that is nobody who may."""
    caller = callers.known(shown_by(context, callers.see_certificates))
    if isinstance(caller, Stranger):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, caller.text)
    return caller


def shown_by(context: AnyContext, see_certificates: bool = True) -> Shown:
    """Return what a caller shows of itself: metadata, certificate, address."""
    said: str | bytes = ""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            said = value
    names = context.auth_context().get("x509_common_name") if see_certificates else None
    common = next(iter(names), None) if names else None
    return Shown(
        said if isinstance(said, str) else said.decode(errors="surrogateescape"),
        None if common is None else common.decode(errors="replace"),
        _is_local(context.peer().rpartition(":")[0]),
    )


@lru_cache(1024)  # each call is asked about; a gateway has few addresses
def _is_local(peer: str) -> bool:
    """Whether a peer, such as `ipv4:127.0.0.1`, is on this machine."""
    kind, _, address = peer.partition(":")
    host = address.replace("%5B", "").replace("%5D", "")
    return kind in ("ipv4", "ipv6") and is_local(host)


def to_wire(asked: Answer) -> pb.RouteResponse:
    """Return an answer, or a refusal, as a message.

    Parts are filled in where they belong: a part that is made apart is copied, its body too.
    """
    answer = pb.RouteResponse(decision_id=asked.decision_id)
    if isinstance(asked, Refused):
        refused = answer.refused
        refused.status, refused.body, refused.reason = asked.status, asked.body, asked.reason
        for name, value in asked.headers:
            refused.headers.add(name=name, value=value)
        return answer
    if isinstance(asked, Told):
        told = answer.answered
        told.status, told.body = 200, asked.body
        for name, value in asked.headers:
            told.headers.add(name=name, value=value)
        return answer
    first, *others = asked.offers
    _fill(answer.routed.target, first)
    for each in others:
        _fill(answer.routed.fallbacks.add(), each)
    return answer


def _fill(target: pb.Target, offer: Offer) -> None:
    backend = offer.candidate.target
    is_engine = isinstance(backend, Engine)
    target.endpoint = backend.endpoint if is_engine else backend.base_url
    target.backend, target.model, target.url = backend.id, offer.candidate.model, offer.url
    target.body = offer.body
    target.remove_headers.extend(offer.remove_headers)
    for name, value in offer.set_headers:
        target.set_headers.add(name=name, value=value)


def _report(request: pb.ReportRequest, event: Event) -> Report:
    def said(name: str) -> int | None:
        return getattr(request, name) if request.HasField(name) else None

    return Report(
        decision_id=request.decision_id,
        event=event,
        age_s=request.age_ms / 1000,
        usage=Usage(said("prompt_tokens"), said("cached_tokens"), said("completion_tokens")),
        status=said("status"),
        backend=request.backend or None,
    )
