"""Which pages of other origins may call the gateway from a browser: none, unless a setting says so.

Only what browsers ask for by CORS; it keeps nobody else out.
"""

from collections.abc import Sequence

from aiohttp import web

MAX_AGE_S = 600
"""How long a browser may go by an answer to its question."""

_METHODS = "GET, POST, DELETE, OPTIONS"
_EXPOSED = "x-request-id, request-id, x-lineside-decision, x-lineside-engine, retry-after"


class CrossOrigin:
    """The origins that are let in."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self._origins = frozenset(origins)

    def install(self, app: web.Application) -> None:
        """Mark every answer, where anybody is let in at all."""
        if self._origins:
            app.on_response_prepare.append(self._mark)

    def preflight(self, request: web.Request) -> web.Response | None:
        """Answer a browser's question whether it may call; `None`: it may not."""
        wanted = request.headers.get("access-control-request-method")
        if request.method != "OPTIONS" or wanted is None or not self._lets_in(request):
            return None
        headers = {
            "access-control-allow-methods": _METHODS,
            "access-control-max-age": str(MAX_AGE_S),
        }
        if asked := request.headers.get("access-control-request-headers"):
            headers["access-control-allow-headers"] = asked
        return web.Response(status=204, headers=headers)

    def _lets_in(self, request: web.Request) -> bool:
        origin = request.headers.get("origin")
        return origin is not None and ("*" in self._origins or origin in self._origins)

    async def _mark(self, request: web.Request, response: web.StreamResponse) -> None:
        if self._lets_in(request):
            response.headers["access-control-allow-origin"] = request.headers["origin"]
            response.headers["access-control-expose-headers"] = _EXPOSED
            response.headers["vary"] = "Origin"
