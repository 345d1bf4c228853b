"""Clients of every API through the gateway, to simulated engines."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import simulate
from agent.dialling import Dialling
from agent.report import Reporter
from coordinator.config import EngineSpec, Timeouts
from lineside.clock import SystemClock
from lineside.ids import NodeId
from tests import simulated
from tests.doors import Sim, before, begun
from tests.gateways import Running, coordinator
from tests.simulated import MODEL
from tests.streams import FakeHub
from tests.waiting import until

pytestmark = pytest.mark.flow

FOLDER = Path(simulate.__file__).parent / "model"
SYSTEM = "You answer questions about the Python language. " * 6
CHAT = {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What?"}]}
MESSAGE = {"system": SYSTEM, "messages": [{"role": "user", "content": "What?"}]}
RESPONSE = {"instructions": SYSTEM, "input": "What?"}

GENERATE = [
    pytest.param("/v1/chat/completions", CHAT | {"max_tokens": 8}, id="a chat"),
    pytest.param("/v1/messages", MESSAGE | {"max_tokens": 8}, id="messages"),
    pytest.param("/v1/responses", RESPONSE | {"max_output_tokens": 8}, id="a response"),
]
LONG = [
    pytest.param("/v1/chat/completions", CHAT | {"max_tokens": 400}, id="a chat"),
    pytest.param("/v1/messages", MESSAGE | {"max_tokens": 400}, id="messages"),
    pytest.param("/v1/responses", RESPONSE | {"max_output_tokens": 400}, id="a response"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Sim, Sim]]:
    options = ("--faults", "--store-responses", "--blocks", "2000", "--answer-tokens", "600")
    with simulated.engine(*options) as one, simulated.engine(*options) as two:
        yield Sim(one["http"]), Sim(two["http"])


def asked(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, **body, **more}


def error_of(path: str, body: bytes) -> str:
    """Check an error's shape; return the message."""
    said = json.loads(body)
    if path.startswith("/v1/messages"):
        assert set(said) == {"type", "error", "request_id"}
        assert (said["type"], set(said["error"])) == ("error", {"type", "message"})
    else:
        assert set(said) == {"error"}
        assert set(said["error"]) == {"message", "type", "param", "code"}
    message: str = said["error"]["message"]
    return message


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("path", "body"), GENERATE)
async def test_an_answer_passes_and_is_counted(
    sims: tuple[Sim, Sim], path: str, body: dict[str, Any], streams: bool
) -> None:
    async with before(sims[0]) as running:
        status, headers, _ = await running.post(path, asked(body, stream=streams))
        assert (status, headers["x-lineside-engine"]) == (200, sims[0].id)
        assert headers["content-type"].startswith(
            "text/event-stream" if streams else "application/json"
        )
        assert ("request-id" in headers) == (path == "/v1/messages")
        outcome = (await running.record(headers))["outcome"]
        assert (outcome["end"], outcome["finish"]) == ("finished", "length")
        assert (outcome["prompt_tokens"], outcome["completion_tokens"]) == (123, 8)
        assert outcome["cached_tokens"] in (0, 96)
        assert (outcome["ttft_s"] is not None) == streams


async def test_one_conversation_in_three_apis_goes_to_one_engine(sims: tuple[Sim, Sim]) -> None:
    """What is predicted to be cached is what the engine says was."""
    async with trusted(*sims) as running:
        system = "Names of stations and of signal boxes. " * 40
        user = {"role": "user", "content": "Which is the nearest?"}
        chat = [{"role": "system", "content": system}, user]
        response = {"instructions": system, "input": user["content"]}
        for path, body in (
            ("/v1/chat/completions", {"messages": chat, "max_tokens": 2}),
            ("/v1/messages", {"system": system, "messages": [user], "max_tokens": 2}),
            ("/v1/responses", response | {"max_output_tokens": 2}),
        ):
            _, headers, _ = await running.post(path, asked(body))
            record = await running.record(headers)
            outcome = record["outcome"]
            known = (record["tokens"], record["prompt_tokens"])
            assert known == ("exact", outcome["prompt_tokens"])
            if path == "/v1/chat/completions":
                first = headers["x-lineside-engine"]
            else:
                assert headers["x-lineside-engine"] == first
                cached = outcome["cached_tokens"] // 64 * 64  # what is ahead is kept by 64 tokens
                assert outcome["speculative_tokens"] == cached > 500


@asynccontextmanager
async def trusted(*sims: Sim) -> AsyncIterator[Running]:
    """Run a coordinator that has their tokenizer, and an agent that vouches for empty caches."""
    specs = [EngineSpec(url=sim.url, tokenizer=str(FOLDER)) for sim in sims]
    async with coordinator(*specs, prefill_tokens_per_s=1000.0) as running:
        hub, clock = FakeHub(), SystemClock()
        reporter = Reporter(
            Dialling.plaintext().to(running.grpc), NodeId("local"), "life", hub, clock
        )
        reporting = asyncio.create_task(reporter.run())
        try:
            await until(running.ready)
            await until_exact(running)
            yield running
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


async def until_exact(running: Running) -> None:
    """Wait for a tokenizer to be loaded."""

    async def exact() -> bool:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        asked = {"path": "/v1/chat/completions", "body": body}
        async with running.session.post(running.admin + "/debug/route", json=asked) as answer:
            state: str = (await answer.json())["tokens"]
            return state == "exact"

    await until(exact)


@pytest.mark.parametrize(("path", "body"), GENERATE)
async def test_refusals_have_the_shape_of_the_api(
    sims: tuple[Sim, Sim], path: str, body: dict[str, Any]
) -> None:
    async with before(sims[0], body_limit_bytes=5000) as running:
        for changed, status, words in (
            (asked(body, model="nope"), 404, "does not exist"),
            (asked(body, stream="yes"), 400, "`stream` must be true or false"),
            (asked(body, user="x" * 5000), 413, "larger than 5000 bytes"),
        ):
            code, headers, said = await running.post(path, changed, {"x-request-id": "r-1"})
            assert (code, headers["x-request-id"]) == (status, "r-1")
            assert words in error_of(path, said)
            assert (await running.record(headers))["outcome"]["end"] == "refused"
        for method, where, status in (("GET", path, 405), ("POST", path + "/no", 404)):
            url = running.http + where
            if method == "GET" and path == "/v1/responses":
                continue  # stored ones have paths below
            async with running.session.request(method, url, json={}) as answer:
                assert answer.status == status
                error_of(path, await answer.read())


@pytest.mark.parametrize(("path", "body"), LONG)
async def test_a_client_that_leaves_stops_its_engine(
    sims: tuple[Sim, Sim], path: str, body: dict[str, Any]
) -> None:
    """`before` looks that nothing is left anywhere within a second."""
    await sims[0].fault("slow", factor=20)
    async with before(sims[0]) as running:
        for streams in (True, False):
            asking = asyncio.create_task(_post(running, path, asked(body, stream=streams)))

            async def works() -> bool:
                return await sims[0].open() == 1

            await until(works)
            if streams:
                await until(partial(begun, running))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

            async def idle() -> bool:
                return await sims[0].open() == 0

            await until(idle, 1.0)


async def _post(running: Running, path: str, body: dict[str, Any]) -> bytes:
    async with (
        aiohttp.ClientSession() as client,
        client.post(running.http + path, json=body) as answer,
    ):
        return await answer.read()


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("path", "body"), GENERATE)
async def test_an_engine_that_never_answers(
    sims: tuple[Sim, Sim], path: str, body: dict[str, Any], streams: bool
) -> None:
    await sims[0].fault("hang", where="generation")
    waits = Timeouts(first_token_s=0.3, idle_s=0.3, total_s=9 if streams else 0.6)
    async with before(sims[0], timeouts=waits) as running:
        status, headers, said = await running.post(path, asked(body, stream=streams))
        assert status == 504
        assert ("first token" if streams else "total") in error_of(path, said)
        assert (await running.record(headers))["outcome"]["end"] == "failed"
        await sims[0].heal()


@pytest.mark.parametrize(("path", "body"), LONG)
async def test_an_engine_that_dies_in_a_stream(
    sims: tuple[Sim, Sim], path: str, body: dict[str, Any]
) -> None:
    await sims[0].fault("die_in_answer", after_chunks=9, count=1)
    async with before(sims[0]) as running:
        said = b""
        with pytest.raises(aiohttp.ClientPayloadError):
            async with running.session.post(
                running.http + path, json=asked(body, stream=True)
            ) as answer:
                assert answer.status == 200
                async for chunk in answer.content.iter_any():
                    said += chunk
        last = said.removesuffix(b"\n\n").split(b"\n\n")[-1]
        name, _, data = last.rpartition(b"data: ")
        error = json.loads(data)
        match path:
            case "/v1/messages":
                assert (name, error["error"]["type"]) == (b"event: error\n", "api_error")
            case "/v1/responses":
                assert (name, error["code"]) == (b"event: error\n", "upstream_broken")
            case _:
                assert (name, error["error"]["code"]) == (b"", 502)


async def test_tokens_are_counted_by_an_engine_or_here(sims: tuple[Sim, Sim]) -> None:
    body = asked({"messages": [{"role": "user", "content": "hello"}]})
    path = "/v1/messages/count_tokens"
    specs = [EngineSpec(url=sims[0].url, tokenizer=str(FOLDER))]
    async with coordinator(*specs, probe_s=60.0) as running:
        await until_exact(running)
        by_engine = {"input_tokens": 15, "context_management": {"original_input_tokens": 15}}
        status, headers, said = await running.post(path, body)
        assert (status, json.loads(said)) == (200, by_engine)
        assert headers["request-id"] == headers["x-request-id"]
        await sims[0].fault("fail_requests", where="tokenize", status=500)
        status, _, said = await running.post(path, body)
        assert (status, json.loads(said)) == (200, {"input_tokens": 15})
        status, _, said = await running.post(path, body | {"model": "nope"})
        assert (status, "does not exist" in error_of(path, said)) == (404, True)
        assert await running.inflight() == [0]


async def test_tokens_that_nobody_can_count(sims: tuple[Sim, Sim]) -> None:
    body = asked({"messages": [{"role": "user", "content": "hello"}]})
    path = "/v1/messages/count_tokens"
    async with before(sims[0], probe_s=60.0) as running:
        await sims[0].fault("fail_requests", where="tokenize", status=500)
        status, headers, said = await running.post(path, body)
        assert (status, headers["retry-after"]) == (503, "1")
        assert (await running.record(headers))["refusal"]["reason"] == "not_counted"
        assert (
            error_of(path, said) == f"nothing can count tokens for `{MODEL}` now; try again shortly"
        )
        await sims[0].heal()


async def test_embeddings_pass_and_wait_for_nobody_else() -> None:
    with simulated.engine("--pooling") as listening:
        async with coordinator(EngineSpec(url=f"http://{listening['http']}")) as running:
            body = {"model": MODEL, "input": ["hello", "ho"]}
            status, headers, said = await running.post("/v1/embeddings", body)
            assert (status, len(json.loads(said)["data"])) == (200, 2)
            record = await running.record(headers)
            assert (record["api"], record["outcome"]["end"]) == ("openai-embeddings", "finished")
            assert record["outcome"]["prompt_tokens"] > 0
            status, headers, said = await running.post("/v1/messages", asked(MESSAGE, max_tokens=1))
            assert (status, "does not have this API" in error_of("/v1/messages", said)) == (
                404,
                True,
            )
