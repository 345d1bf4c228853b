"""A desk that requests steer by their headers, servers that say what they got, and pickers.

With a real Envoy between clients and these servers, what a picker does is seen from both ends.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import aiohttp
import grpc
from aiohttp import web

from coordinator.canonical import BadRequest
from coordinator.doors.envoy import contract
from coordinator.doors.envoy.door import Door
from coordinator.doors.envoy.exchange import Exchange, Terms
from coordinator.doors.envoy.following import Following, Interest
from coordinator.doors.envoy.messages import Note, Picked, Question, Rejected
from coordinator.refusal import Refusal, to_reply

CHAT = "/v1/chat/completions"
LONG_NAME = "org/a-very-much-longer-name-than-the-alias-that-stands-for-it"
NAMES = {"long": LONG_NAME, "shortened": "m"}
"""What models are called at the servers."""

USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
PIECES = 5
PIECE_S = 0.04
BODY_LIMIT = 16 * 2**20


@dataclass
class Desk:
    """Answers as a request's `x-test-` headers say: picks, refuses, hangs or breaks."""

    interest: Interest
    pods: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    given_up: int = 0
    """Questions that were cancelled while they were being decided."""
    turn: int = 0

    async def ask(self, question: Question) -> Picked | Rejected:
        self.questions.append(question)
        match contract.value(question.headers, "x-test-action"):
            case "429":
                return Rejected(429, (("retry-after", "7"),), b'{"error": "budget"}', "over_limit")
            case "503":
                return Rejected(503, (), b'{"error": "none"}', "no_engine_ready")
            case "hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.given_up += 1
            case "break":
                raise ValueError("a mistake")
        try:
            body = json.loads(question.body) if question.body else {}
        except ValueError:
            return self._rejected(BadRequest("the body must be valid JSON in UTF-8", None))
        if body.get("model") == "theirs":
            return Picked((), "provider", json.dumps({**body, "model": "gpt"}).encode())
        if body.get("model") in NAMES:
            body = {**body, "model": NAMES[body["model"]]}
            return Picked(self._endpoints(question), None, json.dumps(body).encode())
        endpoints = self._endpoints(question)
        if not endpoints:
            return Rejected(503, (), b'{"error": "none eligible"}', "no_engine_ready")
        return Picked(endpoints, decision="d-1", set_headers=(("x-lineside-decision", "d-1"),))

    def _endpoints(self, question: Question) -> tuple[str, ...]:
        asked = contract.value(question.headers, "x-test-pick")
        if asked:
            return tuple(asked.split(","))
        hint = question.subset
        able = [pod for pod in self.pods if hint is None or contract.allows(hint, pod)]
        self.turn += 1
        return (able[self.turn % len(able)],) if able else ()

    def refuse(self, refusal: Refusal, exchange: Exchange) -> Rejected:
        return self._rejected(refusal)

    def _rejected(self, refusal: Refusal) -> Rejected:
        reply = to_reply(refusal)
        headers = (("content-type", "application/json"), *reply.headers.items())
        return Rejected(reply.status, headers, reply.openai_body(), reply.reason)

    def follow(self, picked: Picked) -> Following:
        return Following(self.interest, picked.endpoints)

    def note(self, following: Following, note: Note) -> None:
        self.notes.append(note)


@asynccontextmanager
async def picker(
    desk: Desk, terms: Terms, decide_s: float = 0.3, receive_s: float = 5.0
) -> AsyncIterator[str]:
    """Serve a door before a desk; give its address."""

    async def admit(context: object) -> Desk:
        return desk

    door = Door(admit, terms, receive_s, decide_s)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 2 * BODY_LIMIT)])
    server.add_generic_rpc_handlers((door.handler(),))
    bound = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def pod(unready: set[str]) -> AsyncIterator[str]:
    """Serve what says what it got; it answers 503 while its address is in `unready`."""
    where: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if where[0] in unready:
            return web.json_response({"error": "forced"}, status=503)
        body = json.loads(raw) if raw else {}
        seen = {
            "pod": where[0],
            "method": request.method,
            "path": request.path,
            "length": len(raw),
            "model": body.get("model"),
            "headers": {name.lower(): value for name, value in request.headers.items()},
        }
        if body.get("stream"):
            return await _stream(request, seen)
        choices = [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]
        return web.json_response({"seen": seen, "choices": choices, "usage": USAGE})

    app = web.Application(client_max_size=2 * BODY_LIMIT)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    where.append(f"127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield where[0]
    finally:
        await runner.cleanup()


async def _stream(request: web.Request, seen: dict[str, Any]) -> web.StreamResponse:
    head = {"content-type": "text/event-stream", "x-seen": json.dumps(seen)}
    response = web.StreamResponse(headers=head)
    await response.prepare(request)
    for event in events():
        await response.write(event[:20])  # a border inside each event
        await response.write(event[20:])
        await asyncio.sleep(PIECE_S)
    await response.write_eof()
    return response


def events() -> list[bytes]:
    """Return the events of a streamed answer."""
    said: list[Any] = [{"choices": [{"delta": {"content": f"t{at}"}}]} for at in range(PIECES)]
    said.append({"choices": [], "usage": USAGE})
    return [b"data: " + json.dumps(each).encode() + b"\n\n" for each in said] + [
        b"data: [DONE]\n\n"
    ]


@dataclass
class Got:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    reads: int
    """Parts that came one after the other."""

    @property
    def seen(self) -> dict[str, Any]:
        """What the server got."""
        seen: dict[str, Any] = json.loads(self.headers.get("x-seen") or b"null")
        return seen or json.loads(self.body)["seen"]


async def post(
    url: str,
    body: Any = None,
    *,
    method: str = "POST",
    path: str = CHAT,
    chunks: int = 0,
    **headers: str,
) -> Got:
    """Send a request; a body that is no bytes as JSON, in `chunks` bytes at a time if asked to."""
    raw = body if isinstance(body, bytes) else json.dumps(body or {"model": "m"}).encode()
    sent = {"content-type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), chunks):
            yield raw[start : start + chunks]

    data: Any = None if method == "GET" else parts() if chunks else BytesIO(raw)
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout) as client,
        client.request(method, url + path, data=data, headers=sent) as answer,
    ):
        read = [part async for part in answer.content.iter_any()]
        names = {name.lower(): value for name, value in answer.headers.items()}
        return Got(answer.status, names, b"".join(read), len(read))


def dead() -> tuple[socket.socket, str]:
    """Return an address at which connections are refused, as long as the socket is held."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held, f"127.0.0.1:{held.getsockname()[1]}"
