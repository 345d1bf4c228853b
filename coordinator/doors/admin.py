"""Health, metrics and debug endpoints, on a listener of their own. Reads; changes nothing.

Debug endpoints answer callers on this machine, or those that hold the admin token. The listener has
a thread of its own: `/healthz` is answered there, all else on the main loop.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from ipaddress import ip_address
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from coordinator.apis import PATHS
from coordinator.candidates import ASLEEP
from coordinator.canonical import BadRequest
from coordinator.config import Config
from coordinator.doors.listeners import handed_over
from coordinator.doors.parsing import parsed
from coordinator.engines import Engine, EngineView
from coordinator.holdings.audit import Tally
from coordinator.limits import NOBODY
from coordinator.load.inflight import Queue
from coordinator.readiness import Readiness
from coordinator.refusal import to_reply
from coordinator.rules import pools_shown
from coordinator.service import Service
from lineside import logs
from lineside.decoding import decoded
from lineside.signals import Status

log = logs.get("coordinator.doors.admin")

DECISIONS_SHOWN = 100

READY_S = 0.5
"""How long `/readyz` waits for the main loop."""

STUCK_S = 30.0
"""A main loop that has not run for this long will not run again."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A request to try out. `body` is JSON, or the text of a body."""

    path: str
    body: Any
    headers: dict[str, str] = {}


class Admin:
    """The handlers."""

    def __init__(
        self,
        service: Service,
        readiness: Readiness,
        config: Config,
        registry: CollectorRegistry,
        index: Callable[[], Mapping[str, object]],
        policies: Callable[[], Mapping[str, object]],
        providers: Callable[[], Sequence[Mapping[str, object]]],
        silence_s: Callable[[], float],
        members: Callable[[], Mapping[str, object]],
        worth: Callable[[EngineView], int | None],
    ) -> None:
        """`silence_s` says for how long the main loop has not run, on any thread."""
        self._service = service
        self._readiness = readiness
        self._config = config
        self._registry = registry
        self._index = index
        self._policies = policies
        self._providers = providers
        self._silence_s = silence_s
        self._members = members
        self._worth = worth
        self._last_ready = (503, b"")

    def application(self, main: asyncio.AbstractEventLoop) -> web.Application:
        """Return what an aiohttp runner serves, on another loop than the main one."""
        app = web.Application(
            client_max_size=2 * self._config.body_limit_bytes, middlewares=[_in_words]
        )
        app.router.add_get("/", _list)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._promptly(handed_over(self._readyz, main)))
        app.router.add_get("/metrics", handed_over(self._metrics, main))
        for method, path, handler in (
            ("GET", "/debug/engines", self._engines),
            ("GET", "/debug/index", self._show_index),
            ("GET", "/debug/policies", self._show_policies),
            ("GET", "/debug/pools", self._show_pools),
            ("GET", "/debug/decisions", self._decisions),
            ("GET", "/debug/decisions/{id}", self._decision),
            ("GET", "/debug/config", self._show_config),
            ("GET", "/debug/members", self._show_members),
            ("POST", "/debug/route", self._route),
            ("POST", "/debug/policies/rollback", self._roll_back),
        ):
            app.router.add_route(method, path, handed_over(self._guarded(handler), main))
        return app

    def _promptly(self, handler: Handler) -> Handler:
        """Say what was true last, rather than nothing, when the main loop is late."""

        async def answered(request: web.Request) -> web.StreamResponse:
            try:
                async with asyncio.timeout(READY_S):
                    return await handler(request)
            except TimeoutError:
                status, body = self._last_ready
                return web.Response(status=status, body=body, content_type="application/json")

        return answered

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            token = self._config.admin_token
            if token is None:
                if not _is_loopback(request.remote):
                    return _error(403, "set `admin_token` to allow other machines")
            elif not hmac.compare_digest(
                request.headers.get("authorization", "").encode(errors="surrogateescape"),
                f"Bearer {token}".encode(),
            ):
                return _error(401, "send the admin token: `Authorization: Bearer TOKEN`")
            return await handler(request)

        return guarded

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        if (silence_s := self._silence_s()) > STUCK_S:
            return web.Response(
                status=503, text=f"the main loop has not run for {silence_s:.0f} s\n"
            )
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        reasons = self._readiness.reasons()
        degraded = [reason.text for reason in self._readiness.degraded()]
        state = {"ready": not reasons, "reasons": reasons, "degraded": degraded}
        self._last_ready = 503 if reasons else 200, msgspec.json.encode(state)
        return _json(state, self._last_ready[0])

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return web.Response(body=encode(self._registry), headers={"content-type": content_type})

    async def _engines(self, request: web.Request) -> web.StreamResponse:
        now = self._service.clock.monotonic()
        views = self._service.cluster.snapshot(now).engines
        queue = self._service.inflight.queue
        tallies = self._service.audit.tallies()
        return _json(
            [
                engine_json(view, queue(view.engine.id, now))
                | {"cache_worth_tokens": self._worth(view)}
                | {"audit": audit_json(view, tallies.get(view.engine.id))}
                for view in views
            ]
        )

    async def _show_index(self, request: web.Request) -> web.StreamResponse:
        return _json(self._index())

    async def _show_policies(self, request: web.Request) -> web.StreamResponse:
        return _json(self._policies())

    async def _roll_back(self, request: web.Request) -> web.StreamResponse:
        if not self._service.decider.rules.roll_back():
            return _error(409, "there is no earlier set of resources to go back to")
        log.warning("resources rolled back", revision=self._service.decider.rules.revision)
        return _json(self._policies())

    async def _show_pools(self, request: web.Request) -> web.StreamResponse:
        now = self._service.clock.monotonic()
        views = self._service.cluster.snapshot(now).engines
        pools = pools_shown(self._service.decider.rules.bench(), views)
        return _json([*pools, *self._providers()])

    async def _decisions(self, request: web.Request) -> web.StreamResponse:
        refused = _FLAGS.get(request.query.get("refused", ""))
        limit = request.query.get("limit", str(DECISIONS_SHOWN))
        if not re.fullmatch(r"[1-9][0-9]{0,8}", limit):
            return _error(400, "`limit` must be a number from 1 to 999999999")
        found = self._service.records.latest(
            tenant=request.query.get("tenant"),
            model=request.query.get("model"),
            refused=refused,
            limit=int(limit),
        )
        return _json([record.to_json() for record in found])

    async def _decision(self, request: web.Request) -> web.StreamResponse:
        record = self._service.records.get(request.match_info["id"])
        if record is None:
            return _error(404, "there is no such decision, or it is no longer kept")
        return _json(record.to_json())

    async def _show_members(self, request: web.Request) -> web.StreamResponse:
        return _json(self._members())

    async def _show_config(self, request: web.Request) -> web.StreamResponse:
        return _json(self._config.shown())

    async def _route(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = decoded(await request.read(), _Asked)
        except msgspec.MsgspecError as error:
            return _error(400, f"send {{path, headers, body}}: {error}")
        api = PATHS.get(asked.path)
        if api is None:
            return _error(400, "`path` must be one of " + ", ".join(f"`{p}`" for p in PATHS))
        text = isinstance(asked.body, str)
        body = asked.body.encode() if text else msgspec.json.encode(asked.body)
        headers = {name.lower(): value for name, value in asked.headers.items()}
        canonical = await parsed(api, headers, body, self._service.heavy)
        if isinstance(canonical, BadRequest):
            reply = to_reply(canonical)
            refusal = {"reason": reply.reason, "status": reply.status, "message": reply.message}
            return _json({"refusal": refusal, "tenant": NOBODY, "candidates": []})
        return _json((await self._service.dry_run(canonical, NOBODY)).to_json())


LISTED = """\
Lineside, a coordinator's admin listener.

GET  /healthz                  200 as long as the process turns its loops
GET  /readyz                   200, or 503 and why not; what is degraded
GET  /metrics                  for Prometheus

From this machine, or with the admin token (`lineside get`, `lineside route`):

GET  /debug/engines            each engine: its cache, its load, how fresh both are
GET  /debug/index              the index: keys, bytes, by group and engine
GET  /debug/policies           policies in force, and what is wrong with them
GET  /debug/pools              pools, saturation, providers
GET  /debug/decisions          recent decisions: ?tenant= &model= &refused= &limit=
GET  /debug/decisions/{id}     one of them
GET  /debug/members            coordinators and agents
GET  /debug/config             settings, secrets masked
POST /debug/route              where {path, headers, body} would go; sends nothing
POST /debug/policies/rollback  the resources before these into force again
"""


async def _list(_: web.Request) -> web.StreamResponse:
    return web.Response(text=LISTED)


@web.middleware
async def _in_words(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods - {"HEAD"}))
        return _error(405, f"this path takes {allowed} only")
    except web.HTTPNotFound:
        return _error(404, "there is no such path here: `/` lists those that there are")


_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def engine_json(view: EngineView, queue: Queue) -> dict[str, Any]:
    """Return one engine as `/debug/engines` shows it. A missing measurement is null."""
    engine, load = view.engine, view.load
    bases = [model.name for model in engine.models if model.lora is None]
    return {
        "id": engine.id,
        "endpoint": engine.endpoint,
        "model": bases[0] if bases else None,
        "models": [model.name for model in engine.models],
        "group": engine.group,
        "node": engine.node,
        "rank": engine.rank,
        "version": engine.version,
        "generation": view.generation,
        "fresh": view.fresh,
        "age_s": view.heard_age_s,
        "load_age_s": view.load_age_s,
        "cache_state": view.cache_state,
        "reason": view.away or (ASLEEP if view.asleep else view.failing or view.reason),
        "away": bool(view.away),
        "asleep": view.asleep,
        "failing": bool(view.failing),
        "linked": view.linked,
        "block_size": view.block_size,
        "waiting": load.waiting if load else None,
        "running": load.running if load else None,
        "kv_cache_usage": load.kv_cache_usage if load else None,
        "gpus": list(engine.gpus),
        "gpu_utilization": view.gpu_utilization,
        "missing_metrics": list(load.missing) if load else [],
        "inflight": queue.outstanding,
        "queued_tokens": queue.queued_tokens,
        "wait_s": queue.wait_s,
        "saturation": saturation(view),
        "tokenizer": engine.tokenizer,
        **_events_json(engine, view.status),
    }


def _events_json(engine: Engine, status: Status | None) -> dict[str, Any]:
    return {
        "events": engine.events,
        "events_bind": engine.events_bind,
        "events_guessed": engine.events_guessed,
        "replay": engine.replay,
        "stride": engine.stride,
        "blocks": status.blocks if status else None,
        "gaps": status.gaps if status else None,
        "unmatched_removals": status.unmatched_removals if status else None,
        "undecodable": status.undecodable if status else None,
    }


def audit_json(view: EngineView, tally: Tally | None) -> dict[str, Any]:
    """Return what came of holding an engine's digest against its answers."""
    tally = tally or Tally()
    return {
        "mispredicted": bool(view.word.mispredicted),
        "reason": view.word.mispredicted,
        "proven": view.word.proven if view.engine.events_guessed else None,
        **asdict(tally),
    }


def saturation(view: EngineView) -> float | None:
    """Return how full an engine is, 0 to 1: its KV cache, or the share of requests that wait."""
    load = view.load
    if load is None or load.kv_cache_usage is None:
        return None
    waiting, running = load.waiting or 0, load.running or 0
    waiting_share = waiting / (waiting + running) if waiting else 0.0
    return max(load.kv_cache_usage, waiting_share)


def _is_loopback(remote: str | None) -> bool:
    try:
        return remote is not None and ip_address(remote).is_loopback
    except ValueError:
        return False


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "code": status}}, status)
