"""One request to the HTTP door, and the refusals that it may get. What all its handlers share."""

from dataclasses import dataclass

from aiohttp import web

from coordinator import error_shapes
from coordinator.apis import Api, words_of
from coordinator.refusal import Refusal, Reply, to_reply

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the door, with the id that its client and our log know it by."""

    request: web.Request
    id: str

    @property
    def api(self) -> Api | None:
        """In whose words it is answered; `None`: the path is no API's, and OpenAI's will do."""
        return words_of(self.request.path, self.request.headers)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the call in whatever answers it."""
        return error_shapes.headers(self.api, self.id)

    def refusal(self, refusal: Refusal, record_id: str | None = None) -> web.Response:
        """Return the answer of a call that gets no other."""
        return answered(refusal, self.api, self.id, record_id)

    def reply(self, reply: Reply, record_id: str | None = None) -> web.Response:
        """Return a refusal in the shape of the call's API."""
        return _replied(reply, self.api, self.id, record_id)


def answered(
    refusal: Refusal, api: Api | None, request_id: str, record_id: str | None = None
) -> web.Response:
    """Return the answer of a request that gets no other."""
    return _replied(to_reply(refusal), api, request_id, record_id)


def _replied(reply: Reply, api: Api | None, request_id: str, record_id: str | None) -> web.Response:
    headers = {**reply.headers, **error_shapes.headers(api, request_id)}
    if record_id is not None:
        headers["x-lineside-decision"] = record_id
    body = error_shapes.body(reply, api, request_id)
    response = web.Response(status=reply.status, body=body, content_type=JSON, headers=headers)
    if "connection" in headers:
        response.force_close()
    return response
