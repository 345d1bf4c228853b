"""What is no HTTP is refused like anything else: in the API's shape, with a record, and counted."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from coordinator.config import Gateways
from tests.doors import before, client_of, is_error
from tests.gateways import Running

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

LONG = b"x: " + b"a" * 20_000 + b"\r\n\r\n"
CHUNKED = b"host: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
COUNTED = 'lineside_refusals_total{reason="malformed"}'
PACKED = b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd"
ANTHROPIC = b"anthropic-version: 2023-06-01\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with before(gateways=Gateways(anonymous=True)) as running:
        yield running


@pytest.mark.parametrize(
    ("parts", "status", "is_anthropic"),
    [
        pytest.param([b"NO HTTP AT ALL\r\n\r\n"], 400, False, id="no HTTP"),
        pytest.param([b"\x16\x03\x01\x02\x00\x01"], 400, False, id="TLS"),
        pytest.param([b"POST /v1/messages HTTP/9.9\r\n\r\n"], 400, True, id="another version"),
        pytest.param([b"POST /v1/messages HTTP/1.1\r\n" + LONG], 431, True, id="a long header"),
        pytest.param([b"POST /v1/messages HTTP/1.1\r\n", LONG], 431, True, id="in two parts"),
        pytest.param([b"POST /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n"], 431, False, id="a path"),
        pytest.param(
            [b"GET /v1/models HTTP/1.1\r\n" + ANTHROPIC + b"no header\r\n\r\n"], 400, True,
            id="a header that is none",
        ),
        pytest.param(
            [b"POST /v1/responses HTTP/1.1\r\n" + CHUNKED + b"no size\r\n"], 400, False,
            id="a bad chunk, at once",
        ),
        pytest.param(
            [b"POST /v1/messages HTTP/1.1\r\n" + CHUNKED, b"2\r\n{}\r\nno size\r\n"], 400, True,
            id="a bad chunk, later",
        ),
        pytest.param(
            [b"POST /v1/messages HTTP/1.1\r\n" + PACKED],
            400, True, id="not packed as it says",
        ),
    ],
)  # fmt: skip
async def test_it_is_refused_in_the_apis_words(
    running: Running, parts: list[bytes], status: int, is_anthropic: bool
) -> None:
    so_far = (await running.metrics()).get(COUNTED, 0)
    async with client_of(running) as client:
        for part in parts:
            client.writer.write(part)
            await client.writer.drain()
            await asyncio.sleep(0.02)  # so that they are read one after the other
        said, headers, body = await client.answer()
        assert await client.rest() == b""  # and hung up on, without a second answer
    assert (said, headers["content-type"]) == (status, "application/json")
    if is_anthropic:
        told = json.loads(body)
        assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
        assert told["request_id"] == headers["request-id"] == headers["x-request-id"]
    else:
        is_error(body, status)
    record = await running.record(headers)
    assert (record["request_id"], record["refusal"]["reason"]) == (
        headers["x-request-id"],
        "malformed",
    )
    assert (await running.metrics())[COUNTED] == so_far + 1


async def test_it_keeps_its_id(running: Running) -> None:
    async with client_of(running) as client:
        client.writer.write(b"POST /v1/messages HTTP/1.1\r\nx-request-id: r-7\r\n" + LONG)
        _, headers, _ = await client.answer()
        assert headers["x-request-id"] == "r-7"


async def test_what_follows_a_good_request_is_no_part_of_it(running: Running) -> None:
    async with client_of(running) as client:
        client.head("GET /v1/models HTTP/1.1")
        assert (await client.answer())[0] == 200
        client.writer.write(b"POST /v1/messages HTTP/1.1\r\n")
        client.writer.write(LONG)
        status, headers, _ = await client.answer()
        assert (status, "request-id" in headers) == (431, True)


async def test_queries_of_gateways_are_told_too(running: Running) -> None:
    async with client_of(running) as client:
        client.writer.write(b"POST /lineside/v1/route HTTP/1.1\r\n" + CHUNKED)
        await asyncio.sleep(0.02)
        client.writer.write(b"no size\r\n")
        status, _, body = await client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (400, 400)
