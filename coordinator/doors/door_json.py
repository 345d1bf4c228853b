"""The routing query as JSON over HTTP, on the gateway's listener. Translates in and out.

For gateways without gRPC. The same callers may ask, by the same tokens.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from aiohttp import web

from coordinator.doors.callers import (
    Caller,
    Callers,
    NotYours,
    Shown,
    Stranger,
    is_local,
    tenant_of,
)
from coordinator.doors.malformed import BROKEN_BODY
from coordinator.doors.offers import Offer
from coordinator.doors.query import Answer, Queries, Query, Refused, Told
from coordinator.doors.reports import Event, Report
from coordinator.limits import Usage
from lineside.decoding import decoded

ROUTE = "/lineside/v1/route"
REPORT = "/lineside/v1/report"

Handler = Callable[[Caller, bytes], Awaitable[web.Response]]
Events = Literal["first_token", "finished", "aborted", "failed", "unseen"]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

HOW = "send a query as docs/routing-query.md has it"


class _Ask(msgspec.Struct, forbid_unknown_fields=True):
    """A request that a gateway holds. `body` is JSON, which stays as it is, or a body's text."""

    path: str
    body: msgspec.Raw = msgspec.Raw(b"")
    method: str = "POST"
    headers: dict[str, str] = {}
    tenant: str = ""
    subset: list[str] | None = None
    meters: bool = False


class _Tell(msgspec.Struct, forbid_unknown_fields=True):
    """What became of a decision."""

    decision_id: str
    event: Events
    age_ms: Count = 0
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count | None = None
    status: Count | None = None
    backend: str | None = None


class JsonDoor:
    """The handlers."""

    def __init__(self, queries: Queries, callers: Callers) -> None:
        self._queries = queries
        self._callers = callers

    def add_to(self, app: web.Application) -> None:
        """Serve the query beside what an application has."""
        app.router.add_post(ROUTE, self._authenticated(self._route))
        app.router.add_post(REPORT, self._authenticated(self._report))

    def _authenticated(
        self, answer: Handler
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            shown = Shown(
                request.headers.get("authorization", ""), is_local=is_local(request.remote)
            )
            caller = self._callers.known(shown)
            if isinstance(caller, Stranger):
                return _error(401, caller.text)
            try:
                return await answer(caller, await request.read())
            except web.HTTPRequestEntityTooLarge:
                return _error(413, "the query is larger than `body_limit_bytes`")
            except web.RequestPayloadError:
                return _error(400, BROKEN_BODY.message)
            except msgspec.MsgspecError as error:
                return _error(400, f"{HOW}: {error}")

        return handle

    async def _route(self, caller: Caller, raw: bytes) -> web.Response:
        heavy, size = self._queries.heavy, len(raw)
        asked = await heavy.run(lambda: decoded(raw, _Ask), size)
        if not asked.body and asked.method.upper() != "GET":
            return _error(400, f"{HOW}: it has no `body`")
        tenant = tenant_of(caller, asked.tenant)
        if isinstance(tenant, NotYours):
            return _error(400 if tenant.malformed else 403, tenant.text)
        query = Query(
            method=asked.method,
            path=asked.path,
            headers=list(asked.headers.items()),
            body=_body(asked.body),
            tenant=tenant,
            subset=None if asked.subset is None else frozenset(asked.subset),
            caller=caller.name,
            wants_keys=caller.wants_keys,
            meters=asked.meters,
        )
        answer = await self._queries.answer(query)
        return await heavy.run(lambda: _json(to_json(answer)), size)

    async def _report(self, caller: Caller, raw: bytes) -> web.Response:
        told = decoded(raw, _Tell)
        report = Report(
            decision_id=told.decision_id,
            event=Event(told.event),
            age_s=told.age_ms / 1000,
            usage=Usage(told.prompt_tokens, told.cached_tokens, told.completion_tokens),
            status=told.status,
            backend=told.backend,
        )
        self._queries.reports.report(report, caller.name)
        return _json({})


def to_json(asked: Answer) -> dict[str, Any]:
    """Return an answer, or a refusal; bodies are texts, for they are sent on to the byte."""
    if isinstance(asked, Refused):
        refused = {
            "status": asked.status,
            "headers": dict(asked.headers),
            "body": asked.body.decode(),
            "reason": asked.reason,
        }
        return {"decision_id": asked.decision_id, "refused": refused}
    if isinstance(asked, Told):
        told = {"status": 200, "headers": dict(asked.headers), "body": asked.body.decode()}
        return {"decision_id": asked.decision_id, "answered": told}
    first, *others = [_target(each) for each in asked.offers]
    routed = {"target": first, "fallbacks": others}
    return {"decision_id": asked.decision_id, "routed": routed}


def _target(offer: Offer) -> dict[str, Any]:
    backend = offer.candidate.target
    return {
        "endpoint": backend.endpoint if offer.candidate.type == "engine" else backend.base_url,
        "backend": backend.id,
        "model": offer.candidate.model,
        "url": offer.url,
        "set_headers": dict(offer.set_headers),
        "remove_headers": offer.remove_headers,
        "body": offer.body.decode(),
    }


def _body(said: msgspec.Raw) -> bytes:
    raw = bytes(said)
    if raw[:1] != b'"':
        return raw
    text: str = msgspec.json.decode(raw)
    return text.encode()


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "code": status}}, status)
