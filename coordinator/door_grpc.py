"""The routing query over gRPC: `lineside.v1.Router`. Generated types stop here.

A caller that may not ask gets a gRPC status; a request that cannot be routed is an answer.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import grpc

from coordinator.callers import Caller, Callers, NotYours, Shown, Stranger, is_local, tenant_of
from coordinator.limits import Usage
from coordinator.offers import Offer
from coordinator.query import Answered, Asked, Queries, Query, Refused
from coordinator.reports import Event, Report
from lineside import logs
from lineside.v1 import router_pb2 as pb
from lineside.v1 import router_pb2_grpc as rpc

log = logs.get("coordinator.door_grpc")

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

    async def Route(self, request: pb.RouteRequest, context: RouteContext) -> pb.RouteResponse:
        """Decide one request."""
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
        )
        return to_wire(await self._queries.ask(query))

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
    caller = callers.known(shown_by(context))
    if isinstance(caller, Stranger):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, caller.text)
    return caller


def shown_by(context: AnyContext) -> Shown:
    """Return what a caller shows of itself: metadata, certificate, address."""
    said = next((v for k, v in context.invocation_metadata() or () if k == "authorization"), "")
    names = context.auth_context().get("x509_common_name", ())
    name = next(iter(names), None)
    return Shown(
        said if isinstance(said, str) else said.decode(errors="surrogateescape"),
        None if name is None else name.decode(errors="replace"),
        _is_local(context.peer()),
    )


def _is_local(peer: str) -> bool:
    """Whether a peer, such as `ipv4:127.0.0.1:50002`, is on this machine."""
    kind, _, address = peer.partition(":")
    host = address.rpartition(":")[0].replace("%5B", "").replace("%5D", "")
    return kind in ("ipv4", "ipv6") and is_local(host)


def to_wire(asked: Asked) -> pb.RouteResponse:
    """Return an answer, or a refusal, as a message."""
    if isinstance(asked, Refused):
        refused = pb.Refused(
            status=asked.status,
            headers=_headers(asked.headers),
            body=asked.body,
            reason=asked.reason,
        )
        return pb.RouteResponse(decision_id=asked.decision_id, refused=refused)
    return pb.RouteResponse(decision_id=asked.decision_id, routed=_routed(asked))


def _routed(answered: Answered) -> pb.Routed:
    first, *others = answered.offers
    return pb.Routed(target=_target(first), fallbacks=[_target(each) for each in others])


def _target(offer: Offer) -> pb.Target:
    backend = offer.candidate.target
    return pb.Target(
        endpoint=backend.endpoint if offer.candidate.type == "engine" else backend.base_url,
        backend=backend.id,
        model=offer.candidate.model,
        set_headers=_headers(offer.set_headers),
        remove_headers=offer.remove_headers,
        body=offer.body,
        url=offer.url,
    )


def _headers(headers: Iterable[tuple[str, str]]) -> Sequence[pb.Header]:
    return [pb.Header(name=name, value=value) for name, value in headers]


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
