"""`/sim/faults`: the surface that real engines lack, and what faults do to HTTP requests.

There only with `--faults`. POST sets a fault, GET shows what is set and what has struck, DELETE
clears all faults, or those of one name (`?fault=NAME`). The surface itself is never struck.
"""

from typing import get_args

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lineside.clock import Clock
from simulate import replies
from simulate.faults import AnyFault, FailRequests, Faults, Hang, ResetSequence, Where, name
from simulate.ranks import Ranks
from simulate.requests import Refused

PATH = "/sim/faults"
HUNG_POLL_S = 0.05
"""How often a request that hangs looks whether it still does."""

_PLACES: dict[str, Where] = {
    "/v1/chat/completions": "generation",
    "/v1/completions": "generation",
    "/v1/responses": "generation",
    "/v1/messages": "generation",
    "/v1/embeddings": "generation",
    "/v1/messages/count_tokens": "tokenize",
    "/metrics": "metrics",
    "/tokenize": "tokenize",
    "/v1/chat/completions/render": "tokenize",
    "/health": "health",
    "/ping": "health",
}
_NAMES = {name(kind) for kind in get_args(AnyFault)}


class Control:
    """Sets and shows the faults of one server."""

    def __init__(self, faults: Faults, ranks: Ranks, clock: Clock) -> None:
        self._faults = faults
        self._ranks = ranks
        self._clock = clock

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get(PATH, self._show, allow_head=False)
        app.router.add_post(PATH, self._set)
        app.router.add_delete(PATH, self._clear)

    async def _show(self, _: web.Request) -> web.StreamResponse:
        shown = {"active": self._faults.describe(), "struck": self._faults.struck}
        return web.Response(
            body=replies.encode(shown), headers={"Content-Type": "application/json"}
        )

    async def _set(self, request: web.Request) -> web.StreamResponse:
        try:
            fault = msgspec.json.decode(await request.read(), type=AnyFault)
        except msgspec.DecodeError as error:
            raise Refused(400, str(error)) from error
        rank = getattr(fault, "rank", None)
        if rank is not None:
            self._ranks.number(str(rank))
        if isinstance(fault, ResetSequence):
            self._faults.count(fault)
            for driver in self._ranks.drivers:
                if rank in (None, driver.rank):
                    driver.restart()
        else:
            self._faults.set(fault)
        return await self._show(request)

    async def _clear(self, request: web.Request) -> web.StreamResponse:
        named = request.query.get("fault")
        if named is not None and named not in _NAMES:
            raise Refused(400, f"no fault is called `{named}`")
        self._faults.clear(named)
        return await self._show(request)

    @property
    def strike(self) -> Middleware:
        """The middleware that makes requests hang or fail."""

        @web.middleware
        async def struck(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path != PATH:
                await self._suffer(_PLACES.get(request.path, "other"))
            return await handler(request)

        return struck

    async def _suffer(self, place: str) -> None:
        """Wait while hanging lasts; then fail if that is due. Raises `Refused`."""
        hang = self._faults.strike(Hang, place)
        while hang and self._faults.lasts(hang):
            await self._clock.sleep(HUNG_POLL_S)
        failure = self._faults.strike(FailRequests, place)
        if failure:
            raise Refused(failure.status, "made to fail", "InternalServerError")
