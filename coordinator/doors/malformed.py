"""Requests that are no HTTP: refused in the shape of their path's API, recorded, and hung up on.

aiohttp reads a request's head before any handler is asked, and would answer in plain text what it
cannot read. The path and the request's id are looked for in what came, and nothing else of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import EMPTY_PAYLOAD, StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong

from coordinator.apis import words_of
from coordinator.doors.calls import answered
from coordinator.doors.parsing import request_id_of
from coordinator.limits import NOBODY
from coordinator.refusal import Fault, Malformed, Refusal
from coordinator.service import Service
from lineside import logs

log = logs.get("coordinator.doors.malformed")

HEAD_BYTES = 4_096
"""Of a head that is looked at: where it begins."""

TOO_LONG = Malformed(
    "a line of the request's head is too long, or there are too many; send shorter headers", 431
)
NO_HTTP = Malformed("this is no HTTP/1.1 request; send it again from a sound client")
BROKEN_BODY = Malformed(
    "the body is not as its `content-encoding` or `transfer-encoding` says; send it again"
)


@dataclass(frozen=True, slots=True)
class Head:
    """What can be made out of the head of a request. Headers have lower-case names."""

    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def head_of(raw: bytes) -> Head:
    """Read as much of a head as is one."""
    first, *lines = raw[:HEAD_BYTES].decode("latin-1").split("\r\n")
    _, _, rest = first.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    headers: dict[str, str] = {}
    for line in lines:
        if not line:
            break
        name, colon, value = line.partition(":")
        if colon:
            headers.setdefault(name.lower(), value.strip())
    return Head(path if path.startswith("/") else "", headers)


class Answer(Protocol):
    """Answers what could not be read."""

    def __call__(self, head: Head, refusal: Refusal | None) -> web.Response:
        """`None`: a handler broke."""
        ...


class MalformedDoor:
    """The refusals, with their records."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def answer(self, head: Head, refusal: Refusal | None) -> web.Response:
        """Refuse a request; `None`: for a mistake of ours."""
        request_id = request_id_of(head.headers.get("x-request-id", ""))
        refusal = refusal or Fault(request_id)
        refused = self._service.refuse(refusal, NOBODY, request_id)
        api = words_of(head.path, head.headers)
        return answered(refusal, api, request_id, refused.record.id)


class Connection(web.RequestHandler):
    """aiohttp's side of a connection, which asks `answer` what to say where it cannot read on."""

    __slots__ = ("_answer", "_begun", "_body")

    def __init__(self, answer: Answer, manager: web.Server, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._answer = answer
        self._begun = b""
        """How a head begins that is not complete, or is none."""
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the last request."""

    def data_received(self, data: bytes) -> None:
        if not self._begun and self._body.is_eof():
            self._begun = data[:HEAD_BYTES]
        count = self._request_count
        super().data_received(data)
        if self._request_count == count:
            return
        message, body = self._messages[-1]
        if isinstance(message, RawRequestMessage):
            self._begun, self._body = b"", body
        elif not self._body.is_eof():  # a handler waits for the rest, and answers
            self._body.set_exception(web.RequestPayloadError("broken"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        if status < 500:
            head = head_of(self._begun)
            response = self._answer(head, TOO_LONG if isinstance(exc, LineTooLong) else NO_HTTP)
        else:
            log.fault("request failed", path=request.path)
            named = {name.lower(): value for name, value in request.headers.items()}
            response = self._answer(Head(request.path, named), None)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):  # it was answered
            super().log_exception(*args, **kw)
