"""Stand-ins for third parties: OpenAI's, Anthropic's and Bedrock's APIs, on real sockets.

Written from the APIs' public descriptions, and sharing no code with the product. A stub keeps what
it was sent, and refuses what the real one would: a wrong path, key or signature.
"""

import asyncio
import binascii
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

WORDS = ("Hello", " there", ".")
KEY = "sk-provider-secret"
AWS = ("AKIDPROVIDER", "aws-provider-secret")
COUNT = 1234
"""What it takes any message's tokens for."""
TOKEN = "aws-session-secret"
REGION = "eu-west-1"


@dataclass
class Call:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Stub:
    """One provider. `type` is as in an `InferenceProvider`; the other fields say how it behaves."""

    type: str
    status: int = 200
    """Of every answer."""
    retry_after: str | None = None
    cut_after: int | None = None
    """Pieces of a stream after which it hangs up."""
    full_after: int | None = None
    """Pieces of a stream after which it says, in its API's words, that it takes no more."""
    wait_s: float = 0.0
    """Before it answers."""
    between_s: float = 0.002
    """Between the pieces of a stream."""
    refuses: str | None = None
    """A field of the body that it answers with 400."""
    says: str = "out of order"
    """In its errors."""
    token: str | None = None
    """Of the session that signs, for Bedrock."""
    calls: list[Call] = field(default_factory=list)
    url: str = ""
    _runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def bodies(self) -> list[Any]:
        return [call.body for call in self.calls]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = json.loads(raw)
        self.calls.append(Call(request.raw_path, headers, body))
        await asyncio.sleep(self.wait_s)
        if not self._is_let_in(request, headers, raw):
            return self._error(401, f"wrong key {headers.get('authorization')}")
        if self.status != 200:
            return self._error(self.status, self.says)
        if self.refuses is not None and self.refuses in body:
            return self._error(400, f"Unknown parameter: '{self.refuses}'.")
        match self.type, request.path.rpartition("/")[2]:
            case "Bedrock", "converse":
                return web.json_response(CONVERSE)
            case "Bedrock", "converse-stream":
                return await self._stream(request, _converse_frames())
            case "Anthropic", "count_tokens":
                if extra := body.keys() - {"messages", "model", "system", "tools"}:
                    return self._error(400, f"{min(extra)}: Extra inputs are not permitted")
                return web.json_response({"input_tokens": COUNT, "context_management": None})
            case "Anthropic", "messages":
                if body.get("stream"):
                    return await self._stream(request, _anthropic_events(body["model"]))
                return web.json_response(ANTHROPIC | {"model": body["model"]})
            case "OpenAI" | "AzureOpenAI" | "Databricks", "completions":
                if body.get("stream"):
                    return await self._stream(request, _openai_events(body))
                return web.json_response(OPENAI | {"model": body["model"]})
        return self._error(404, "no such path")

    def _is_let_in(self, request: web.Request, headers: dict[str, str], raw: bytes) -> bool:
        match self.type:
            case "Anthropic":
                return headers.get("x-api-key") == KEY and "anthropic-version" in headers
            case "AzureOpenAI":
                return headers.get("api-key") == KEY
            case "Bedrock" if not headers.get("authorization", "").startswith("Bearer"):
                return self.token == headers.get("x-amz-security-token") and _is_signed(
                    request, headers, raw
                )
        return headers.get("authorization") == f"Bearer {KEY}"

    def _error(self, status: int, message: str) -> web.Response:
        shown: dict[str, Any] = {"error": {"message": message, "type": "x", "code": None}}
        if self.type == "Bedrock":
            shown = {"message": message}
        elif self.type == "Anthropic":
            shown = {"type": "error", "error": {"type": "x", "message": message}}
        headers = {} if self.retry_after is None else {"retry-after": self.retry_after}
        return web.json_response(shown, status=status, headers=headers)

    async def _stream(self, request: web.Request, pieces: list[bytes]) -> web.StreamResponse:
        kind = "application/vnd.amazon.eventstream" if self.type == "Bedrock" else SSE
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        for number, piece in enumerate(pieces):
            if number == self.full_after:
                await response.write(_FULL[self.type])
                break
            if number == self.cut_after:
                assert request.transport is not None
                request.transport.abort()
                break
            await response.write(piece)
            await asyncio.sleep(self.between_s)
        return response


SSE = "text/event-stream"
OPENAI = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "".join(WORDS)},
        }
    ],
    "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
}
ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "".join(WORDS)}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 11, "output_tokens": 3},
}
CONVERSE = {
    "output": {"message": {"role": "assistant", "content": [{"text": "".join(WORDS)}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 11, "outputTokens": 3, "totalTokens": 14},
    "metrics": {"latencyMs": 5},
}


def _openai_events(body: dict[str, Any]) -> list[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": body["model"]}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in WORDS]
    chunks = [head | {"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if body.get("stream_options", {}).get("include_usage"):
        chunks.append(head | {"choices": [], "usage": OPENAI["usage"]})
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [
        b"data: [DONE]\n\n"
    ]


def _anthropic_events(model: str) -> list[bytes]:
    start = ANTHROPIC | {"content": [], "stop_reason": None, "model": model}
    start["usage"] = {"input_tokens": 11, "output_tokens": 1}
    text = {"type": "text", "text": ""}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "ping"},
    ]
    for word in WORDS:
        delta = {"type": "text_delta", "text": word}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    events += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


def _converse_frames() -> list[bytes]:
    events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
    for word in WORDS:
        delta = {"contentBlockIndex": 0, "delta": {"text": word}}
        events += [("contentBlockDelta", delta)]
    events += [
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {"usage": CONVERSE["usage"], "metrics": {"latencyMs": 5}}),
    ]
    return [_frame(name, json.dumps(payload).encode()) for name, payload in events]


def _frame(event: str, payload: bytes, kind: str = "event") -> bytes:
    """Return a message of an event stream: lengths, checksums, headers, payload."""
    said = {f":{kind}-type": event, ":content-type": "application/json", ":message-type": kind}
    headers = b"".join(
        struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value))
        + value.encode()
        for name, value in said.items()
    )  # fmt: skip
    prelude = struct.pack(">II", len(headers) + len(payload) + 16, len(headers))
    prelude += struct.pack(">I", binascii.crc32(prelude))
    whole = prelude + headers + payload
    return whole + struct.pack(">I", binascii.crc32(whole))


_FULL = {
    "OpenAI": b'data: {"error":{"message":"full","code":"rate_limit_exceeded"}}\n\n',
    "Anthropic": b"event: error\n"
    b'data: {"type":"error","error":{"type":"overloaded_error","message":"full"}}\n\n',
    "Bedrock": _frame("throttlingException", b'{"message":"full"}', "exception"),
}


def _is_signed(request: web.Request, headers: dict[str, str], raw: bytes) -> bool:
    """Sign the request again as it arrived, with the library that AWS signs with."""
    given = headers.get("authorization", "")
    if not given.startswith("AWS4-HMAC-SHA256 "):
        return False
    parts = dict(part.split("=", 1) for part in given.split(" ", 1)[1].split(", "))
    signed = {name: headers[name] for name in parts["SignedHeaders"].split(";")}
    again = AWSRequest("POST", f"http://{request.host}{request.raw_path}", signed, raw)
    again.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(Credentials(*AWS), "bedrock", REGION)
    text = signer.string_to_sign(again, signer.canonical_request(again))
    scope = f"{AWS[0]}/{headers['x-amz-date'][:8]}/{REGION}/bedrock/aws4_request"
    good: bool = parts["Signature"] == signer.signature(text, again)
    return good and parts["Credential"] == scope and "host" in signed


@asynccontextmanager
async def running(*stubs: Stub) -> AsyncIterator[None]:
    """Run stubs."""
    try:
        for stub in stubs:
            await stub.start()
        yield
    finally:
        for stub in stubs:
            await stub.stop()
