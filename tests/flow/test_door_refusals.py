"""What the gateway refuses by itself, and clients that are slow, old or gone."""

import asyncio
import io
import json
import socket
import struct
from typing import Any

import pytest

from coordinator.config import Timeouts
from tests.doors import (
    CHAT,
    CHAT_PATH,
    LONG,
    Client,
    Sim,
    before,
    client_of,
    is_error,
)
from tests.simulated import MODEL
from tests.waiting import until

pytestmark = pytest.mark.flow


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
        kind: dict[str, str | int] = {
            "content_type": "application/json",
            "transfer_encoding": "chunked",
        }
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
        kind: dict[str, str | int] = {
            "content_type": "application/json",
            "content_length": 10 * LIMIT,
        }
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


# --- clients that are slow, old or gone -----------------------------------------------------------


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
        kind: dict[str, str | int] = {"content_type": "application/json", "content_length": 100}
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
