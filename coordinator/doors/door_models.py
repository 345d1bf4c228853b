"""`/v1/models` and `/v1/models/{id}` of the HTTP gateway."""

from aiohttp import web

from coordinator.doors.calls import Call
from coordinator.doors.listing import Listing
from coordinator.refusal import UnknownModel


class ModelsDoor:
    """Lists the names that requests may use."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    async def all(self, call: Call) -> web.StreamResponse:
        """Answer with all models."""
        return self._answer(call, None)

    async def one(self, call: Call) -> web.StreamResponse:
        """Answer with one model, or that there is none of this name."""
        return self._answer(call, call.request.match_info["id"])

    def _answer(self, call: Call, name: str | None) -> web.StreamResponse:
        shown = self._listing.answer(name, call.api)
        if isinstance(shown, UnknownModel):
            return call.refusal(shown)
        return web.json_response(shown, headers=call.headers)
