"""Who holds a stored response. Remembers, and asks engines once of one that it does not know.

A response lives in the memory of the engine that made it: what goes on from it goes there. After a
restart, or where another coordinator routed it, nobody here knows which one that is.
"""

import asyncio
from urllib.parse import quote

import msgspec

from coordinator.cluster import Cluster
from coordinator.doors.asides import ERRORS, Asides, whole
from coordinator.doors.stored import Holder, Holders
from coordinator.engines import Engine, EngineView
from coordinator.refusal import NoEngineReady, Refusal, ResponseGone, ResponseUnknown
from lineside.clock import Clock
from lineside.decoding import decoded
from lineside.ids import TenantId

LOOK_S = 1.0
"""For all engines together, when nobody knows who holds a response."""

LOOKED_AT = 64
"""More are not asked for one response."""

LOOKS = 4
"""Responses that are looked for at once. Whoever asks for what is not there costs engines little:
the others wait, and those that wait too long hear that it is not known."""

LOOK_WAIT_S = 5.0

PLAIN = {"accept": "application/json", "accept-encoding": "identity"}


class Holding:
    """Finds holders. What a relay sees of a new response goes to `holders`."""

    def __init__(self, cluster: Cluster, clock: Clock, asides: Asides) -> None:
        self.holders = Holders()
        self._cluster = cluster
        self._clock = clock
        self._asides = asides
        self._looks = asyncio.Semaphore(LOOKS)

    async def subset(
        self, response: str | None, tenant: TenantId, subset: frozenset[str] | None = None
    ) -> frozenset[str] | Refusal | None:
        """Return the endpoints that a request may go to, which goes on from a response or not.

        `subset`: endpoints, or hosts, that a gateway would send it to; `None`: any.
        """
        if response is None:
            return subset
        holder = await self.find(response, tenant)
        if not isinstance(holder, Holder):
            return holder
        host = holder.endpoint.rpartition(":")[0].removeprefix("[").removesuffix("]")
        if subset is not None and subset.isdisjoint((holder.endpoint, host)):
            return frozenset()
        return frozenset({holder.endpoint})

    def engine(self, holder: Holder) -> Engine | None:
        """Return an engine behind a holder's address; `None`: it is a provider's."""
        return next((view.engine for view in self._views(holder.endpoint)), None)

    async def find(self, response: str, tenant: TenantId) -> Holder | Refusal:
        """Return who holds a tenant's response, or why nobody can be asked for it."""
        holder = self.holders.find(response, tenant)
        if holder is None and not self.holders.knows(response):
            holder = await self._look_for(response, tenant)
        if holder is None:
            return ResponseUnknown()
        if not holder.is_engine:
            return holder
        views = self._views(holder.endpoint)
        if not views:
            return ResponseGone()
        return NoEngineReady(holder.model) if all(view.away for view in views) else holder

    def _views(self, endpoint: str) -> list[EngineView]:
        views = self._cluster.snapshot(self._clock.monotonic()).engines
        return [view for view in views if view.engine.endpoint == endpoint]

    async def _look_for(self, response: str, tenant: TenantId) -> Holder | None:
        """Ask engines who has a response. Its id is random, and was told to its owner alone."""
        try:
            async with asyncio.timeout(LOOK_WAIT_S), self._looks:
                return await self._asked(response, tenant)
        except TimeoutError:
            return None

    async def _asked(self, response: str, tenant: TenantId) -> Holder | None:
        views = self._cluster.snapshot(self._clock.monotonic()).engines
        engines = {view.engine.endpoint: view.engine for view in views if not view.away}
        path = f"/v1/responses/{quote(response, safe='')}"
        asked = [self._model_of(engine, path) for engine in list(engines.values())[:LOOKED_AT]]
        for engine, model in zip(engines.values(), await asyncio.gather(*asked), strict=False):
            if model is not None:
                holder = Holder(engine.endpoint, model, tenant)
                self.holders.note(response, holder)
                return holder
        return None

    async def _model_of(self, engine: Engine, path: str) -> str | None:
        """Return the model of a response that an engine holds; `None`: it holds none such."""
        try:
            async with asyncio.timeout(LOOK_S):
                answer = await self._asides.ask(engine, "GET", path, PLAIN)
                async with answer:
                    body = await whole(answer) if answer.status == 200 else None
            return None if body is None else decoded(body, _Stored).model
        except (*ERRORS, msgspec.DecodeError):
            return None


class _Stored(msgspec.Struct):
    model: str = ""
