"""No prompt, no answer, no token ids and no key in logs, pages, or between agent and coordinator.

Reads the bytes: logs of both processes at their chattiest, every page, and a tap on the wire.
"""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.children import Child, child
from tests.waiting import until

pytestmark = pytest.mark.flow

MARKER = "Zebrafish-quicksilver-marmalade"
PROMPT = f"Tell nobody about {MARKER} and the violet cathedral beneath the harbour. " * 8
IDS = [(7 * at * at + 13 * at + 311) % 900 + 60 for at in range(160)]
"""A prompt of token ids that nothing else would write by chance."""

RUN = 4
"""So many token ids in a row are a part of a prompt."""

SECRETS = ("sk-client-secret", "session-of-a-client", "cookie-of-a-client", "agent-token-secret")


class Tap:
    """Stands between agent and coordinator and keeps all that passes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self.bytes = bytearray()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        async with server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*self._target)
        with suppress(ConnectionError):
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(2**16):
            self.bytes += part
            writer.write(part)
            await writer.drain()
        writer.close()


def encodings(ids: Sequence[int]) -> Iterator[bytes]:
    """Yield what a run of token ids may look like."""
    for layout in ("<I", ">I", "<Q", ">Q", "<H"):
        yield b"".join(struct.pack(layout, each) for each in ids)
    for between in (", ", ",", " "):
        yield between.join(map(str, ids)).encode()
    yield b"".join(map(_varint, ids))
    yield b"".join(b"\xcd" + struct.pack(">H", each) for each in ids)  # MessagePack


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def found_in(what: bytes, prompts: Sequence[Sequence[int]], texts: Sequence[str]) -> list[str]:
    """Return what of the prompts and texts is in these bytes."""
    found = [text for text in texts if text.encode() in what]
    for ids in prompts:
        for start in range(0, len(ids) - RUN, RUN):
            run = ids[start : start + RUN]
            found += [f"token ids {run}" for form in encodings(run) if form in what]
    return found


def test_what_is_looked_for_would_be_found() -> None:
    for form in encodings(IDS[40:50]):
        assert found_in(b"xx" + form + b"xx", [IDS], [])
    assert found_in(json.dumps({"prompt": PROMPT}).encode(), [], [MARKER])
    assert not found_in(b"nothing here", [IDS], [MARKER])


class Party:
    """Two engines, a coordinator and an agent with a tap between them."""

    def __init__(
        self, engines: list[str], coordinator: Child, agent: Child, tap: Tap, logs: Path
    ) -> None:
        self.engines = engines
        self.http = f"http://{coordinator.listening['http']}"
        self.admin = f"http://{coordinator.listening['admin']}"
        self.agent = f"http://{agent.listening['metrics']}"
        self.tap = tap
        self.logs = logs
        self.answers: list[str] = []

    async def ask(self, client: aiohttp.ClientSession, path: str, body: Any, **how: Any) -> int:
        """Send a request; keep what was answered as something that must not be found."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {SECRETS[0]}",
            "x-api-key": SECRETS[0],
            "x-session-id": SECRETS[1],
            "cookie": f"a={SECRETS[2]}",
        }
        url = self.http + path
        async with client.post(url, data=raw, headers=headers | how) as answer:
            with suppress(aiohttp.ClientPayloadError):
                for choice in _choices(await answer.read()):
                    text = choice.get("text") or choice.get("message", {}).get("content") or ""
                    if len(text) > 20:
                        self.answers.append(text)
            return answer.status

    async def pages(self, client: aiohttp.ClientSession) -> dict[str, bytes]:
        """Return every page of both processes."""
        paths = ["engines", "index", "decisions?limit=2000", "config"]
        urls = [f"{self.admin}/debug/{path}" for path in paths]
        urls += [f"{base}/{page}" for base in (self.admin, self.agent) for page in _OPEN]
        shown = {}
        for url in urls:
            async with client.get(url) as answer:
                shown[url] = await answer.read()
        dry = {"path": CHAT, "headers": {"authorization": SECRETS[0]}, "body": chat(PROMPT)}
        async with client.post(f"{self.admin}/debug/route", json=dry) as answer:
            assert answer.status == 200
            shown["/debug/route"] = await answer.read()
        return shown


_OPEN = ("metrics", "readyz", "healthz")


def _choices(body: bytes) -> list[dict[str, Any]]:
    try:
        answer = json.loads(body)
    except ValueError:
        return []
    return answer.get("choices", []) if isinstance(answer, dict) else []


@asynccontextmanager
async def party(logs: Path) -> AsyncIterator[Party]:
    options = ["--port=0", "--model-name=m", "--faults", "--block-size=16"]
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(child(f"engine {n}", "simulate.main", options))
            for n in range(2)
        ]
        addresses = [engine.listening["http"] for engine in engines]
        listen = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
        common = {"transport": "plaintext", "node": "n", "log_level": "debug"}
        config = (
            common
            | listen
            | {
                "engines": [{"url": f"http://{address}"} for address in addresses],
                "agent_token": SECRETS[3],
                "timeouts": {"first_token_s": 0.5, "idle_s": 0.5},
            }
        )
        coordinator = await stack.enter_async_context(
            child("coordinator", "coordinator.main", config=config, log=logs / "coordinator")
        )
        tap = Tap(coordinator.listening["grpc"])
        address = await stack.enter_async_context(tap.listening())
        settings = common | {"coordinators": [address], "token": SECRETS[3]}
        agent = await stack.enter_async_context(
            child("agent", "agent.main", config=settings, log=logs / "agent")
        )
        yield Party(addresses, coordinator, agent, tap, logs)


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"


def chat(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "max_tokens": 24, "ignore_eos": True} | more


def completion(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "max_tokens": 24, "ignore_eos": True} | more


def message(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    return {"model": "m", "system": text, "messages": messages, "max_tokens": 24} | more


def response(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "instructions": text, "input": text, "max_output_tokens": 24} | more


async def _good_requests(here: Party, client: aiohttp.ClientSession) -> None:
    for stream in (False, True):
        for path, body in (
            (CHAT, chat(PROMPT, stream=stream)),
            (COMPLETIONS, completion(PROMPT, stream=stream)),
            (COMPLETIONS, completion(IDS, stream=stream)),
            (COMPLETIONS, completion([IDS, IDS[::-1]], stream=stream)),
            (CHAT, chat(PROMPT, cache_salt=MARKER, user=MARKER, stream=stream)),
            (MESSAGES, message(PROMPT, stream=stream)),
            (MESSAGES, message(PROMPT, cache_salt=MARKER, stream=stream)),
            (COUNT, message(PROMPT)),
            (RESPONSES, response(PROMPT, stream=stream, metadata={MARKER: MARKER})),
        ):
            assert await here.ask(client, path, body) == 200


async def _bad_requests(here: Party, client: aiohttp.ClientSession) -> None:
    for path, body, status in (
        (CHAT, f'{{"model": "m", "messages": "{MARKER}'.encode(), 400),
        (CHAT, {"model": "m", "messages": MARKER}, 400),
        (CHAT, {"model": "m", MARKER: MARKER}, 400),
        (CHAT, chat(PROMPT, model="nope"), 404),
        (CHAT, chat(PROMPT, temperature=-1), 400),
        (CHAT, chat(PROMPT, tools=MARKER), 400),
        (CHAT, chat(PROMPT * 300), 400),
        (COMPLETIONS, completion([*IDS, 10**9]), 400),
        (COMPLETIONS, completion([*IDS, -1]), 400),
        (COMPLETIONS, completion([*IDS, MARKER]), 400),
        (f"/v1/{MARKER}?q={MARKER}", chat(PROMPT), 404),
        (MESSAGES, message(PROMPT, messages=[{"role": MARKER, "content": MARKER}]), 400),
        (MESSAGES, message(PROMPT, system={MARKER: MARKER}), 400),
        (MESSAGES, message(PROMPT * 300), 400),
        (MESSAGES, {"model": "m", "messages": MARKER}, 400),
        (COUNT, message(PROMPT, tools=MARKER), 400),
        (RESPONSES, response(PROMPT, input=[{"type": MARKER}]), 400),
        (RESPONSES, response(PROMPT, previous_response_id=MARKER), 404),
        ("/v1/embeddings", {"model": "m", "input": PROMPT}, 404),
    ):
        assert await here.ask(client, path, body) == status, (path, status)
    host, port = here.http.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: a\r\n{MARKER}\r\n\r\n{PROMPT}".encode())
    await writer.drain()
    writer.close()
    assert await here.ask(client, CHAT, b"\x1f\x8b" + PROMPT.encode(), **{
        "content-encoding": "gzip"
    }) == 400  # fmt: skip


async def _failures(here: Party, client: aiohttp.ClientSession) -> None:
    for fault, status in (
        ({"fault": "fail_requests", "status": 500}, {500}),
        ({"fault": "fail_requests", "status": 503}, {503}),
        ({"fault": "die_in_answer", "after_chunks": 3}, {200, 502}),
        ({"fault": "hang", "where": "generation"}, {504}),
    ):
        for engine in here.engines:
            async with client.post(f"http://{engine}/sim/faults", json=fault) as answer:
                assert answer.status == 200
        assert await here.ask(client, CHAT, chat(PROMPT, stream=True)) in status
        assert await here.ask(client, COMPLETIONS, completion(IDS, stream=True)) in status
        assert await here.ask(client, MESSAGES, message(PROMPT, stream=True)) in status
        for engine in here.engines:
            async with client.delete(f"http://{engine}/sim/faults"):
                pass
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await here.ask(client, CHAT, chat(PROMPT, max_tokens=5000))


async def test_nothing_of_a_prompt_gets_anywhere(tmp_path: Path) -> None:
    async with party(tmp_path) as here, aiohttp.ClientSession() as client:
        await until(lambda: _linked(here, client))
        await _good_requests(here, client)
        await _bad_requests(here, client)
        await _failures(here, client)
        await _good_requests(here, client)
        prompts = [IDS, await _tokens(here, client)]
        await asyncio.sleep(0.5)  # the last digests and reports
        places = await here.pages(client)
        engines = json.loads(places[f"{here.admin}/debug/engines"])
        assert all(engine["blocks"] > 20 for engine in engines)
    # Both processes have ended; what they logged is complete.
    places["between agent and coordinator"] = bytes(here.tap.bytes)
    for log in ("coordinator", "agent"):
        places[f"log of the {log}"] = (tmp_path / log).read_bytes()
    assert len(here.tap.bytes) > 5000
    assert all(places.values())
    assert len(here.answers) >= 6
    texts = [MARKER, "violet cathedral", *SECRETS[:3], *here.answers]
    leaks = {place: found_in(what, prompts, texts) for place, what in places.items()}
    # The agent's token authenticates it: it is on the wire, and must be nowhere else.
    leaks |= {
        f"{place}: the token": [SECRETS[3]]
        for place, what in places.items()
        if not place.startswith("between") and SECRETS[3].encode() in what
    }
    assert {place: found for place, found in leaks.items() if found} == {}


async def _linked(here: Party, client: aiohttp.ClientSession) -> bool:
    async with client.get(f"{here.admin}/readyz") as answer:
        return answer.status == 200


async def _tokens(here: Party, client: aiohttp.ClientSession) -> list[int]:
    asked = {"model": "m", "prompt": PROMPT}
    async with client.post(f"http://{here.engines[0]}/tokenize", json=asked) as answer:
        tokens: list[int] = (await answer.json())["tokens"]
    return tokens[:200]
