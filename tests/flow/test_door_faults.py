"""What clients get when an engine fails or they themselves misbehave, before simulated engines."""

import asyncio
import io
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from coordinator.config import EngineSpec, Timeouts
from tests import simulated
from tests.gateways import Running, coordinator, until
from tests.simulated import MODEL

pytestmark = pytest.mark.flow

CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
LONG = CHAT | {"max_tokens": 400, "ignore_eos": True, "stream": True}
SHORT_WAITS = Timeouts(connect_s=0.5, first_token_s=0.5, idle_s=0.5, total_s=30, receive_s=0.6)


class Sim:
    """A simulated engine that can be made to fail."""

    def __init__(self, address: str) -> None:
        self.id = address
        self.url = f"http://{address}"

    async def fault(self, fault: str, **how: Any) -> None:
        async with aiohttp.ClientSession() as client:
            await simulated.post(client, f"{self.url}/sim/faults", fault=fault, **how)

    async def heal(self) -> None:
        async with aiohttp.ClientSession() as client:
            await client.delete(f"{self.url}/sim/faults")

    async def open(self) -> int:
        """Return how many requests it is working on."""
        async with aiohttp.ClientSession() as client, client.get(f"{self.url}/load") as answer:
            load: int = (await answer.json())["server_load"]
            return load

    async def asked(self) -> int:
        """Return how many requests it has ended, in whatever way."""
        async with aiohttp.ClientSession() as client, client.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(
            int(float(line.split()[-1])) for line in lines if "request_success_total{" in line
        )


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Sim, Sim]]:
    with (
        simulated.engine("--faults", "--blocks", "2000") as one,
        simulated.engine("--faults", "--blocks", "2000") as two,
    ):
        yield Sim(one["http"]), Sim(two["http"])


@pytest.fixture
async def sims(servers: tuple[Sim, Sim]) -> AsyncIterator[tuple[Sim, Sim]]:
    """Two engines without a fault, before and after."""
    try:
        yield servers
    finally:
        for server in servers:
            await server.heal()


@asynccontextmanager
async def before(*sims: Sim, **settings: Any) -> AsyncIterator[Running]:
    """Run a coordinator; at the end nothing is in flight, here or at the engines."""
    specs = [EngineSpec(url=sim.url) for sim in sims]
    async with coordinator(*specs, **({"timeouts": SHORT_WAITS} | settings)) as running:
        yield running

        async def quiet() -> bool:
            return await running.inflight() == [0] * len(sims) and not any(
                [await sim.open() for sim in sims]
            )

        await until(quiet, 1.0)  # aborted within a second


def is_error(body: bytes, status: int) -> str:
    """Check OpenAI's error shape; return the message."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert isinstance(error["message"], str)
    return error["message"]


class Client:
    """A client that says exactly what the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def head(self, line: str, **headers: str | int) -> None:
        named = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        self.writer.write(f"{line}\r\nhost: a\r\n{''.join(named)}\r\n".encode())

    def ask(self, body: dict[str, Any], version: str = "1.1", **headers: str) -> None:
        raw = json.dumps(body).encode()
        kind = {"content_type": "application/json", "content_length": len(raw)}
        self.head(f"POST {CHAT_PATH} HTTP/{version}", **kind, **headers)
        self.writer.write(raw)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one answer of a known length."""
        status, headers = await self.answer_head()
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    async def answer_head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(5):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def rest(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.read()


@asynccontextmanager
async def client_of(running: Running, **options: Any) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*running.address, **options)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def stream(
    running: Running, body: dict[str, Any], chunks: int | None = None
) -> tuple[list[bytes], bool]:
    """Read a stream's events, some of them or all; return them and whether it ended cleanly."""
    events = b""
    async with running.session.post(running.http + CHAT_PATH, json=body) as answer:
        assert answer.status == 200, await answer.text()
        try:
            async for chunk in answer.content.iter_any():
                events += chunk
                if chunks is not None and events.count(b"\n\n") >= chunks:
                    return events.split(b"\n\n")[:-1], False
        except aiohttp.ClientPayloadError:
            return events.split(b"\n\n")[:-1], False
    return events.split(b"\n\n")[:-1], True


def ends_in_error(events: list[bytes], status: int) -> str:
    assert not any(b"[DONE]" in event for event in events)
    return is_error(events[-1].removeprefix(b"data: "), status)


# --- what the door refuses by itself ----------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        pytest.param(b'{"model": ', {}, 400, id="bad JSON"),
        pytest.param(b"\xff\xfe", {}, 400, id="not UTF-8"),
        pytest.param(b"[]", {}, 400, id="no object"),
        pytest.param(b"", {}, 400, id="empty"),
        pytest.param(json.dumps({"model": MODEL}).encode(), {}, 400, id="no messages"),
        pytest.param(json.dumps(CHAT | {"model": "nope"}).encode(), {}, 404, id="unknown model"),
        pytest.param(
            json.dumps(CHAT).encode(), {"content-type": "text/plain"}, 400, id="wrong content type"
        ),
    ],
)
async def test_what_cannot_be_routed_touches_no_engine(
    sims: tuple[Sim, Sim], body: bytes, headers: dict[str, str], status: int
) -> None:
    async with before(sims[0]) as running:
        asked = await sims[0].asked()
        kind = {"content-type": "application/json"} | headers
        url = running.http + CHAT_PATH
        for _ in range(2):  # on one connection
            async with running.session.post(url, data=body, headers=kind) as answer:
                assert answer.status == status
                assert answer.content_type == "application/json"
                is_error(await answer.read(), status)
        assert await sims[0].asked() == asked
        counted = await running.debug("/debug/decisions?refused=true")
        assert len(counted) == 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT_PATH, 405),
        ("PUT", CHAT_PATH, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/", 404),
        ("POST", "/v1/embeddings/nope", 404),
        ("DELETE", "/v1/nope", 404),
    ],
)
async def test_other_methods_and_paths(method: str, path: str, status: int) -> None:
    async with before() as running, running.session.request(method, running.http + path) as answer:
        assert answer.status == status
        is_error(await answer.read(), status)
        assert ("allow" in answer.headers) is (status == 405)


async def test_head_has_a_status_and_no_body(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running, client_of(running) as client:
        for path, status in (("/v1/models", 200), (CHAT_PATH, 405), ("/nope", 404)):
            client.head(f"HEAD {path} HTTP/1.1")
            assert (await client.answer_head())[0] == status  # what follows is the next head
        client.ask(CHAT)
        assert (await client.answer())[0] == 200


LIMIT = 100_000


@pytest.mark.parametrize("expects", [False, True], ids=["sent at once", "asked first"])
async def test_a_body_over_the_limit_is_refused_before_it_is_read(expects: bool) -> None:
    async with (
        before(body_limit_bytes=LIMIT) as running,
        client_of(running) as client,
    ):
        headers = {"expect": "100-continue"} if expects else {}
        kind: dict[str, Any] = {"content_type": "application/json", "content_length": LIMIT + 1}
        client.head(f"POST {CHAT_PATH} HTTP/1.1", **kind, **headers)
        status, _, body = await client.answer()  # nothing of the body was sent
        assert status == 413
        is_error(body, 413)
        client.writer.write(b" " * (LIMIT + 1))
        client.head("GET /v1/models HTTP/1.1")
        assert (await client.answer())[0] == 200  # the connection is still good


async def test_a_body_that_was_asked_for_is_taken(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running, client_of(running) as client:
        raw = json.dumps(CHAT).encode()
        kind: dict[str, Any] = {"content_type": "application/json", "content_length": len(raw)}
        client.head(f"POST {CHAT_PATH} HTTP/1.1", **kind, expect="100-continue")
        assert (await client.answer_head())[0] == 100
        client.writer.write(raw)
        assert (await client.answer())[0] == 200


async def test_a_body_over_the_limit_without_a_length() -> None:
    async with before(body_limit_bytes=LIMIT) as running, client_of(running) as client:
        kind = {"content_type": "application/json", "transfer_encoding": "chunked"}
        client.head(f"POST {CHAT_PATH} HTTP/1.1", **kind)
        part = b"2710\r\n" + b" " * 10_000 + b"\r\n"
        for _ in range(11):
            client.writer.write(part)
        status, _, body = await client.answer()
        assert status == 413
        is_error(body, 413)
        client.writer.write(b"0\r\n\r\n")
        client.head("GET /v1/models HTTP/1.1")
        assert (await client.answer())[0] == 200


async def test_a_client_that_goes_on_sending_is_cut_off_in_the_end() -> None:
    async with before(body_limit_bytes=LIMIT) as running, client_of(running) as client:
        kind = {"content_type": "application/json", "content_length": 10 * LIMIT}
        client.head(f"POST {CHAT_PATH} HTTP/1.1", **kind)
        assert (await client.answer())[0] == 413
        client.writer.write_eof()
        assert await client.rest() == b""


async def test_ten_megabytes_pass(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running:
        large = io.BytesIO(json.dumps(CHAT | {"user": "x" * 10_000_000}).encode())
        kind = {"content-type": "application/json"}
        url = running.http + CHAT_PATH
        async with running.session.post(url, data=large, headers=kind) as answer:
            assert answer.status == 200
            assert (await answer.json())["usage"]["completion_tokens"] == 4


# --- clients --------------------------------------------------------------------------------


async def test_headers_that_come_too_slowly_are_not_waited_for() -> None:
    async with before() as running, client_of(running) as client:
        client.writer.write(f"POST {CHAT_PATH} HTTP/1.1\r\n".encode())
        assert await slowly(client, b"x-slow: 1\r\n") < 3.0


async def test_the_second_request_of_a_connection_is_not_waited_for_longer() -> None:
    async with before() as running, client_of(running) as client:
        client.head("GET /v1/models HTTP/1.1")
        assert (await client.answer())[0] == 200
        client.writer.write(b"GET /v1/models HTTP/1.1\r\n")
        assert await slowly(client, b"x-slow: 1\r\n") < 3.0


async def slowly(client: Client, part: bytes) -> float:
    """Send a part again and again until the other side hangs up; return the seconds it took."""
    now = asyncio.get_running_loop().time
    start = now()
    while not client.reader.at_eof() and now() - start < 5:
        client.writer.write(part)
        try:
            async with asyncio.timeout(0.1):
                await client.reader.read(1)
        except TimeoutError:
            continue
        except ConnectionResetError:
            break
    return now() - start


async def test_a_body_that_comes_too_slowly_is_refused(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running, client_of(running) as client:
        kind = {"content_type": "application/json", "content_length": 100}
        client.head(f"POST {CHAT_PATH} HTTP/1.1", **kind)
        client.writer.write(b'{"model"')
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (408, "close")
        is_error(body, 408)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_a_connection_that_is_to_close_closes(
    sims: tuple[Sim, Sim], version: str, streams: bool
) -> None:
    async with before(sims[0]) as running, client_of(running) as client:
        client.ask(CHAT | {"stream": streams}, version, connection="close")
        status, headers = await client.answer_head()
        rest = await client.rest()
        assert status == 200
        assert ("transfer-encoding" in headers) is (streams and version == "1.1")
        assert rest.rstrip(b"0\r\n").endswith(b"data: [DONE]" if streams else b"}")


async def test_an_old_client_that_keeps_its_connection_is_told_where_a_stream_ends(
    sims: tuple[Sim, Sim],
) -> None:
    """HTTP/1.0 has no chunks: what has no length ends with the connection, whatever was asked."""
    async with before(sims[0], timeouts=Timeouts()) as running, client_of(running) as client:
        client.ask(CHAT, "1.0", connection="keep-alive")
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (200, "keep-alive")
        client.ask(CHAT | {"stream": True}, "1.0", connection="keep-alive")
        status, headers = await client.answer_head()
        assert (status, headers.get("connection", "close")) == (200, "close")
        assert (await client.rest()).endswith(b"data: [DONE]\n\n")


async def test_a_client_that_hangs_up_is_charged_for_what_it_saw(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running:
        async with running.session.post(running.http + CHAT_PATH, json=LONG) as answer:
            seen = b""
            while seen.count(b"\n\n") < 11:  # the role, then ten tokens
                seen += await answer.content.readany()
            decision = answer.headers["x-lineside-decision"]

        async def ended() -> bool:
            record = await running.debug(f"/debug/decisions/{decision}")
            return record["outcome"]["end"] is not None

        await until(ended, 1.0)
        outcome = (await running.debug(f"/debug/decisions/{decision}"))["outcome"]
        assert (outcome["end"], outcome["partial"]) == ("aborted", True)
        tokens = seen.count(b"\n\n") - 1
        assert tokens <= outcome["completion_tokens"] <= tokens + 8  # the rest was on its way


async def test_a_client_that_resets_its_connection_leaves_nothing(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(*running.address)
            Client(reader, writer).ask(LONG)
            await reader.read(100)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()


# --- engines --------------------------------------------------------------------------------


async def test_an_engine_that_cannot_be_reached_is_passed_over(sims: tuple[Sim, Sim]) -> None:
    async with before(*sims, probe_s=60.0) as running:
        await sims[0].fault("refuse_connections", for_s=1.5)
        for _ in range(8):
            status, headers, _ = await running.post(CHAT_PATH, CHAT)
            assert (status, headers["x-lineside-engine"]) == (200, sims[1].id)
        await asyncio.sleep(1.6)


async def test_no_engine_that_can_be_reached(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0], probe_s=60.0) as running:
        await sims[0].fault("refuse_connections", for_s=1.0)
        for expected in (502, 503):
            status, headers, body = await running.post(CHAT_PATH, CHAT | {"stream": True})
            assert (status, headers["retry-after"]) == (expected, "1")
            is_error(body, expected)
        await asyncio.sleep(1.1)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_an_engine_that_never_answers(sims: tuple[Sim, Sim], streams: bool) -> None:
    await sims[0].fault("hang", where="generation")
    waits = Timeouts(first_token_s=0.4, idle_s=0.4, total_s=0.8 if not streams else 9)
    async with before(sims[0], timeouts=waits) as running:
        status, headers, body = await running.post(CHAT_PATH, CHAT | {"stream": streams})
        assert status == 504
        assert ("first token" if streams else "total") in is_error(body, 504)
        assert (await running.record(headers))["outcome"]["end"] == "failed"
        await sims[0].heal()


async def test_a_hung_engine_costs_others_nothing_and_is_left_out(sims: tuple[Sim, Sim]) -> None:
    hung, well = sims
    waits = Timeouts(first_token_s=2.0)
    async with before(*sims, timeouts=waits) as running:
        await hung.fault("hang")  # its whole server

        async def ask() -> tuple[int, str, float]:
            start = asyncio.get_running_loop().time()
            status, headers, _ = await running.post(CHAT_PATH, CHAT | {"stream": True})
            return status, headers.get("x-lineside-engine", ""), _since(start)

        first = await asyncio.gather(*(ask() for _ in range(12)))
        assert {status for status, _, _ in first} == {200, 504}
        assert max(took for status, _, took in first if status == 200) < 1.0
        later = [await ask() for _ in range(20)]
        assert {(status, engine) for status, engine, _ in later} == {(200, well.id)}
        assert max(took for _, _, took in later) < 1.0
        engines = {e["id"]: e for e in await running.debug("/debug/engines")}
        assert "did not answer in time" in engines[hung.id]["reason"]
        _, headers, _ = await running.post(CHAT_PATH, CHAT)
        dropped = {c["id"]: c["dropped_by"] for c in (await running.record(headers))["candidates"]}
        assert dropped == {hung.id: "failing", well.id: None}
        await hung.heal()


def _since(start: float) -> float:
    return asyncio.get_running_loop().time() - start


async def test_engines_are_never_all_left_out(sims: tuple[Sim, Sim]) -> None:
    async with before(*sims) as running:
        for sim in sims:
            await sim.fault("fail_requests", status=500)
        for _ in range(20):
            assert (await running.post(CHAT_PATH, CHAT))[0] == 500
        for sim in sims:
            await sim.heal()
        answers = [await running.post(CHAT_PATH, CHAT) for _ in range(6)]
        assert [status for status, _, _ in answers] == [200] * 6  # no wait, either


async def test_an_engines_own_failure_passes_as_it_is(sims: tuple[Sim, Sim]) -> None:
    async with before(*sims) as running:
        await sims[0].fault("fail_requests", status=500)
        await sims[1].fault("fail_requests", status=500)
        status, headers, body = await running.post(CHAT_PATH, CHAT)
        assert (status, is_error(body, 500)) == (500, "made to fail")
        assert (await running.record(headers))["attempts"] == []  # it may have run


async def test_an_engine_that_is_unavailable_is_passed_over(sims: tuple[Sim, Sim]) -> None:
    async with before(*sims) as running:
        await sims[0].fault("fail_requests", status=503)
        for streams in (True, False) * 4:
            status, headers, _ = await running.post(CHAT_PATH, CHAT | {"stream": streams})
            assert (status, headers["x-lineside-engine"]) == (200, sims[1].id)
        await sims[1].fault("fail_requests", status=503)
        status, headers, body = await running.post(CHAT_PATH, CHAT)
        assert (status, headers["retry-after"]) == (503, "1")
        is_error(body, 503)


async def test_client_errors_do_not_count_against_an_engine(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running:
        too_long = CHAT | {"messages": [{"role": "user", "content": "word " * 3000}]}
        for _ in range(20):
            status, _, body = await running.post(CHAT_PATH, too_long)
            assert status == 400
            is_error(body, 400)
        (engine,) = await running.debug("/debug/engines")
        assert not engine["failing"]
        assert (await running.post(CHAT_PATH, CHAT))[0] == 200


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_an_engine_that_dies_before_any_content(sims: tuple[Sim, Sim], streams: bool) -> None:
    async with before(*sims) as running:
        for sim in sims:
            await sim.fault("die_in_answer", count=1)
        status, headers, body = await running.post(CHAT_PATH, CHAT | {"stream": streams})
        assert status == 502
        assert "not sent twice" in is_error(body, 502)
        (attempt,) = (await running.record(headers))["attempts"] or [{"repeat": "uncertain"}]
        assert attempt["repeat"] == "uncertain"


async def test_an_engine_that_dies_in_mid_stream(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running:
        await sims[0].fault("die_in_answer", after_chunks=5, count=1)
        events, clean = await stream(running, LONG)
        assert not clean
        assert len(events) == 6
        ends_in_error(events, 502)
        (record,) = await running.debug("/debug/decisions")
        assert record["outcome"]["end"] == "failed"


async def test_an_engine_that_dies_in_mid_stream_of_an_old_client(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running, client_of(running) as client:
        await sims[0].fault("die_in_answer", after_chunks=5, count=1)
        client.ask(LONG, "1.0")
        assert (await client.answer_head())[0] == 200
        ends_in_error((await client.rest()).split(b"\n\n")[:-1], 502)


async def test_a_stream_that_stalls(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0]) as running:
        reading = asyncio.create_task(stream(running, LONG))
        await asyncio.sleep(0.2)
        await sims[0].fault("freeze")
        events, clean = await reading
        assert not clean
        assert "idle" in ends_in_error(events, 504)
        await sims[0].heal()


async def test_a_stream_that_takes_too_long(sims: tuple[Sim, Sim]) -> None:
    waits = Timeouts(first_token_s=0.4, idle_s=0.4, total_s=0.5)
    async with before(sims[0], timeouts=waits) as running:
        await sims[0].fault("slow", factor=10)
        events, clean = await stream(running, LONG)
        assert not clean
        assert "total" in ends_in_error(events, 504)
        await sims[0].heal()
