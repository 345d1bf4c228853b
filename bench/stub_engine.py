"""Engines that compute nothing, in one process: what is left of a request is what a gateway costs.

    python bench/stub_engine.py MODEL TOKENS ADDRESS [ADDRESS ...]

One before each simulated engine, which answers all but chats. Those get the same bytes always, by a
parser that does no more than find the body's length; a long one renders to `TOKENS` ids at once.
A streamed chat comes in writes of one event, as many as it says, one every `INTERVAL_S`.
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import uvloop

INTERVAL_S = 0.008
TOKENS_SAID = 16

LONG_BYTES = 1500
"""Of a body: shorter ones are questions about the tokenizer."""

_KEPT = re.compile(rb"(?i)\bconnection: [^\r]*\r\n")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_WRITES = re.compile(rb'"stream (\d+)"')
"""The content that asks for so many: some routers write `max_tokens` anew."""

_STREAMS = re.compile(rb'"stream": ?true')


class Replies:
    """All that is ever said, made once."""

    def __init__(self, model: str, tokens: int) -> None:
        said = {"role": "assistant", "content": "word " * TOKENS_SAID, "refusal": None}
        choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": "stop"}
        self._named = {"id": "chatcmpl-0123456789abcdef", "created": 1790000000, "model": model}
        usage = {"prompt_tokens": tokens, "completion_tokens": TOKENS_SAID}
        usage["total_tokens"] = tokens + TOKENS_SAID
        self.chat = _whole(
            {**self._named, "object": "chat.completion", "choices": [choice], "usage": usage}
        )
        self.event = _chunk(self._event({"content": " word"}))
        self.last = _chunk(self._event({}, "length")) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        self.rendered = _whole({"token_ids": list(range(1000, 1000 + tokens)), "model": model})

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._named, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _whole(body: Any, status: bytes = b"200 OK") -> bytes:
    raw = json.dumps(body, separators=(",", ":")).encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(raw)) + raw


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One of a router's, which asks once at a time."""

    def __init__(self, replies: Replies, behind: str) -> None:
        self._replies = replies
        self._behind = behind
        self._passing: asyncio.Task[None] | None = None
        self._read = bytearray()
        self._wanted: int | None = None
        """Bytes of the request that is arriving; `None`: its head is not complete."""
        self._body_at = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._wanted is None:
            end = self._read.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._read, 0, end)
            self._body_at = end + 4
            self._wanted = self._body_at + (int(length[1]) if length else 0)
        if len(self._read) >= self._wanted:
            head, body = bytes(self._read[: self._body_at]), bytes(self._read[self._body_at :])
            self._read.clear()
            self._wanted = None
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        replies, path = self._replies, head.split(b" ", 2)[1]
        if path == b"/v1/chat/completions":
            if _STREAMS.search(body):
                said = _WRITES.search(body)
                self._stream(int(said[1]) if said else TOKENS_SAID)
            else:
                self._transport.write(replies.chat)
        elif path.endswith(b"/render") and len(body) > LONG_BYTES:
            self._transport.write(replies.rendered)
        else:
            self._passing = asyncio.ensure_future(self._pass_on(head + body))

    async def _pass_on(self, request: bytes) -> None:
        host, _, port = self._behind.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        line, _, rest = request.partition(b"\r\n")
        writer.write(line + b"\r\nconnection: close\r\n" + _KEPT.sub(b"", rest))
        self._transport.write(await reader.read(-1))
        self._transport.close()  # as the answer says
        writer.close()

    def _stream(self, left: int) -> None:
        loop = asyncio.get_running_loop()
        self._transport.write(self._replies.head)
        due = loop.time()

        def write(left: int, due: float) -> None:
            if self._transport.is_closing():
                return
            self._transport.write(self._replies.event if left else self._replies.last)
            if left:
                loop.call_at(due + INTERVAL_S, write, left - 1, due + INTERVAL_S)

        write(left, due)


async def serve(behind: Sequence[str], replies: Replies) -> None:
    """Serve until killed, on any free ports, which are printed."""
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(partial(Connection, replies, each), "127.0.0.1", 0)
        for each in behind
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    listening = {"http": ",".join(f"127.0.0.1:{port}" for port in ports)}
    print(json.dumps({"listening": listening}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[3:], Replies(sys.argv[1], int(sys.argv[2]))))
