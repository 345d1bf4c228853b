"""The gateway over sockets: real coordinator, small fake engines, plain clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from coordinator.config import EngineSpec, Timeouts
from tests import gateways
from tests.fakes import BAD_TEMPERATURE, MODEL, ROOT, FakeEngine, fake_engines
from tests.gateways import Running
from tests.waiting import until

pytestmark = pytest.mark.flow

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
COMPLETION = {"model": MODEL, "prompt": list(range(40)), "max_tokens": 5}


def coordinator(*engines: FakeEngine, **settings: Any) -> AbstractAsyncContextManager[Running]:
    return gateways.coordinator(*(EngineSpec(url=engine.url) for engine in engines), **settings)


async def test_a_chat_comes_back_as_the_engine_gave_it() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        status, headers, body = await running.post(
            "/v1/chat/completions", CHAT, {"x-request-id": "abc"}
        )
        assert status == 200
        assert json.loads(body)["id"] == "chatcmpl-abc"
        assert headers["x-request-id"] == "abc"
        assert headers["x-lineside-engine"] == engine.endpoint
        record = await running.record(headers)
        assert record["tokens"] == "engine"
        assert record["decision"]["id"] == engine.endpoint
        assert record["outcome"] | {"duration_s": None, "predicted_ttft_s": None} == {
            "end": "finished",
            "status": 200,
            "finish": "length",
            "ttft_s": None,
            "predicted_ttft_s": None,
            "cached_tokens": 32,
            "partial": False,
            "predicted_cached_tokens": None,  # no agent has said what the engine holds
            "speculative_tokens": None,
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "duration_s": None,
        }
        assert await running.inflight() == [0]
        assert engine.bodies == [CHAT]


@pytest.mark.parametrize("asked", [True, False], ids=["usage asked", "usage not asked"])
@pytest.mark.parametrize(
    ("path", "request_body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)],
    ids=["chat", "completion"],
)
async def test_a_stream_passes_and_is_metered(
    path: str, request_body: dict[str, Any], asked: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if asked else {}
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        status, headers, body = await running.post(path, request_body | {"stream": True} | options)
        assert status == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert body == b"".join(engine.events(request_body | options))
        assert engine.bodies[0]["stream_options"] == {"include_usage": True}
        record = await running.record(headers)
        assert record["outcome"]["cached_tokens"] == 32
        assert record["outcome"]["finish"] == "length"
        assert record["outcome"]["ttft_s"] > 0
        assert await running.inflight() == [0]


async def test_token_ids_are_exact() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        _, headers, _ = await running.post("/v1/completions", COMPLETION)
        record = await running.record(headers)
        assert (record["tokens"], record["prompt_tokens"]) == ("exact", 40)
        assert record["candidates"][0]["uncached_tokens"] == 40
        assert engine.bodies[0]["prompt"] == COMPLETION["prompt"]


async def test_models_of_all_engines_are_listed_once() -> None:
    engines = FakeEngine(adapters=("sql",)), FakeEngine()
    async with fake_engines(*engines), coordinator(*engines) as running:
        async with running.session.get(running.http + "/v1/models") as answer:
            cards = (await answer.json())["data"]
        assert [(c["id"], c["root"], c["parent"], c["max_model_len"]) for c in cards] == [
            ("sql", "sql", MODEL, 1024),
            (MODEL, ROOT, None, 1024),
        ]


async def test_an_engines_own_error_passes_unchanged() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        for stream in (False, True):
            status, headers, body = await running.post(
                "/v1/chat/completions", CHAT | {"temperature": -1, "stream": stream}
            )
            assert (status, json.loads(body)) == (400, BAD_TEMPERATURE)
            record = await running.record(headers)
            assert (record["outcome"]["end"], record["outcome"]["status"]) == ("rejected", 400)
            assert "refusal" not in record
        assert await running.inflight() == [0]
        assert len(engine.bodies) == 2


async def test_an_unknown_model_is_refused_with_the_served_ones() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        status, headers, body = await running.post("/v1/chat/completions", CHAT | {"model": "nope"})
        assert (status, json.loads(body)) == (
            404,
            {
                "error": {
                    "message": f"the model `nope` does not exist; served models: `{MODEL}`",
                    "type": "NotFoundError",
                    "param": "model",
                    "code": 404,
                }
            },
        )
        assert (await running.record(headers))["refusal"]["reason"] == "unknown_model"
        assert engine.bodies == []


async def test_a_large_body_is_refused_unread() -> None:
    async with (
        fake_engines(FakeEngine()) as (engine,),
        coordinator(engine, body_limit_bytes=1000) as running,
    ):
        large = CHAT | {"user": "x" * 1000}
        status, _, body = await running.post("/v1/chat/completions", large)
        assert (status, json.loads(body)["error"]["code"]) == (413, 413)

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 100

        url = running.http + "/v1/chat/completions"
        async with running.session.post(url, data=chunks()) as answer:
            assert answer.status == 413


async def test_what_is_not_json_is_refused() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        url = running.http + "/v1/chat/completions"
        sent = {"data": b'{"model": "x", ', "headers": {"content-type": "application/json"}}
        async with running.session.post(url, **sent) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error["message"] == "the body must be valid JSON in UTF-8"
        listed = await running.debug("/debug/decisions?refused=true")
        assert [record["refusal"]["reason"] for record in listed] == ["bad_request"]


async def test_what_is_not_its_encoding_is_refused() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        url = running.http + "/v1/chat/completions"
        sent = {"data": b"{}", "headers": {"content-encoding": "gzip"}}
        async with running.session.post(url, **sent) as answer:
            assert answer.status == 400


async def test_what_is_not_http_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with coordinator() as running:
        host, port = running.http.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nsecret\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        (record,) = await running.debug("/debug/decisions")
    assert answer.startswith(b"HTTP/1.0 400")
    assert record["refusal"]["reason"] == "malformed"
    for said in (answer.decode(), str(record), caplog.text):
        assert "secret" not in said


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nope", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
    ],
)
async def test_other_paths_have_an_error_shape(method: str, path: str, status: int) -> None:
    async with (
        coordinator() as running,
        running.session.request(method, running.http + path) as answer,
    ):
        assert answer.status == status
        assert (await answer.json())["error"]["code"] == status


async def test_no_engine_at_all_is_an_unknown_model() -> None:
    async with coordinator() as running:
        status, _, _ = await running.post("/v1/chat/completions", CHAT)
        assert status == 404
        assert await running.debug("/readyz") == {
            "ready": False,
            "reasons": ["no engine can be reached"],
            "degraded": [],
        }


async def test_a_refused_connection_takes_the_fallback() -> None:
    engines = FakeEngine(), FakeEngine()
    async with (
        fake_engines(*engines) as (first, second),
        coordinator(first, second, probe_s=60.0) as running,
    ):
        await first.stop()
        answers = [await running.post("/v1/chat/completions", CHAT) for _ in range(8)]
        assert [status for status, _, _ in answers] == [200] * 8
        assert {headers["x-lineside-engine"] for _, headers, _ in answers} == {second.endpoint}
        tries = [(await running.record(headers))["attempts"] for _, headers, _ in answers]
        # The first try that fails takes the engine out; the others never see it.
        assert [attempt for attempts in tries for attempt in attempts] in (
            [],
            [{"engine": first.endpoint, "repeat": "safe", "reason": "connection refused"}],
        )
        assert await running.inflight() == [0, 0]


async def test_all_engines_gone_is_said_and_healed() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        port = int(engine.url.rpartition(":")[2])
        await engine.stop()
        status, headers, _ = await running.post("/v1/chat/completions", CHAT)
        assert status in (502, 503)
        assert (await running.record(headers))["refusal"]["reason"] in (
            "upstream_unreachable",
            "no_engine_ready",
        )
        status, headers, _ = await running.post("/v1/chat/completions", CHAT)
        assert (status, headers["retry-after"]) == (503, "1")
        record = await running.record(headers)
        assert record["candidates"][0]["dropped_by"] == "away"
        assert not await running.ready()
        await engine.start(port)
        await until(running.ready)
        status, _, _ = await running.post("/v1/chat/completions", CHAT)
        assert status == 200


async def test_a_client_that_leaves_aborts_the_engine() -> None:
    async with (
        fake_engines(FakeEngine(words=500, between_s=0.02)) as (engine,),
        coordinator(engine) as running,
    ):
        url = running.http + "/v1/chat/completions"
        async with running.session.post(url, json=CHAT | {"stream": True}) as answer:
            record_id = answer.headers["x-lineside-decision"]
            await answer.content.readany()
            assert await running.inflight() == [1]
        async with asyncio.timeout(1):
            await engine.aborted.wait()
        assert await running.inflight() == [0]
        record = await running.debug(f"/debug/decisions/{record_id}")
        assert record["outcome"]["end"] == "aborted"


async def test_a_client_that_leaves_before_any_answer_aborts_the_engine() -> None:
    async with fake_engines(FakeEngine(first_s=30)) as (engine,), coordinator(engine) as running:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await running.post("/v1/chat/completions", CHAT)
        async with asyncio.timeout(1):
            await engine.aborted.wait()
        assert await running.inflight() == [0]


async def test_a_stream_that_breaks_off_does_not_look_complete() -> None:
    async with fake_engines(FakeEngine(cut_after=3)) as (engine,), coordinator(engine) as running:
        url = running.http + "/v1/chat/completions"
        async with running.session.post(url, json=CHAT | {"stream": True}) as answer:
            received = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                async for chunk in answer.content.iter_any():
                    received += chunk
            headers = {name.lower(): value for name, value in answer.headers.items()}
        events = received.split(b"\n\n")
        assert b"\n\n".join(events[:3]) + b"\n\n" == b"".join(engine.events(CHAT)[:3])
        assert json.loads(events[3].removeprefix(b"data: "))["error"]["code"] == 502
        assert (await running.record(headers))["refusal"]["reason"] == "upstream_broken"
        assert await running.inflight() == [0]


async def test_a_stream_that_breaks_off_before_content_is_an_error() -> None:
    async with fake_engines(FakeEngine(cut_after=1)) as (engine,), coordinator(engine) as running:
        status, _, body = await running.post("/v1/chat/completions", CHAT | {"stream": True})
        assert (status, json.loads(body)["error"]["code"]) == (502, 502)
        assert len(engine.bodies) == 1  # it may have run, so it was not sent twice


@pytest.mark.parametrize(
    ("engine", "timeouts", "phase"),
    [
        pytest.param(FakeEngine(first_s=9), Timeouts(first_token_s=0.2), "first token", id="first"),
        pytest.param(FakeEngine(first_s=9), Timeouts(total_s=0.2), "total", id="total"),
    ],
)
async def test_a_silent_engine_times_out(
    engine: FakeEngine, timeouts: Timeouts, phase: str
) -> None:
    async with fake_engines(engine), coordinator(engine, timeouts=timeouts) as running:
        status, headers, body = await running.post("/v1/chat/completions", CHAT | {"stream": True})
        assert status == 504
        assert phase in json.loads(body)["error"]["message"]
        async with asyncio.timeout(1):
            await engine.aborted.wait()
        assert await running.inflight() == [0]
        assert (await running.record(headers))["outcome"]["end"] == "failed"


async def test_a_stream_that_stalls_is_cut() -> None:
    engine = FakeEngine(words=5, between_s=9)
    timeouts = Timeouts(first_token_s=20, idle_s=0.2)
    async with fake_engines(engine), coordinator(engine, timeouts=timeouts) as running:
        url = running.http + "/v1/completions"
        async with running.session.post(url, json=COMPLETION | {"stream": True}) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        assert await running.inflight() == [0]


async def test_a_client_that_does_not_read_is_dropped() -> None:
    engine = FakeEngine(words=1000, word="x" * 20_000)
    timeouts = Timeouts(first_token_s=5, idle_s=0.3)
    async with fake_engines(engine), coordinator(engine, timeouts=timeouts) as running:
        host, port = running.http.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps(CHAT | {"stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + body)
        async with asyncio.timeout(4):
            await engine.aborted.wait()
        assert await running.inflight() == [0]
        (record,) = await running.debug("/debug/decisions")
        assert record["outcome"]["end"] == "aborted"
        writer.transport.abort()


async def test_headers_that_end_at_the_door() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        await running.post(
            "/v1/chat/completions",
            CHAT,
            {
                "connection": "keep-alive, x-private",
                "x-private": "1",
                "authorization": "Bearer client-key",
                "x-vllm-priority": "-1",
                "x-data-parallel-rank": "3",
                "x-session-id": "conversation",
                "traceparent": "00-1-2-01",
            },
        )
        got = {name.lower() for name in engine.requests[0].headers}
        assert got - {"host", "user-agent", "accept", "content-length"} == {
            "accept-encoding",
            "content-type",
            "traceparent",
            "x-request-id",
            "x-session-id",
        }


async def test_ranks_behind_one_server_are_engines_of_their_own() -> None:
    sources = {
        str(rank): {"enable_kv_cache_events": False, "endpoint": "", "publisher": "zmq"}
        for rank in (0, 1)
    }
    async with (
        fake_engines(FakeEngine(sources=sources)) as (engine,),
        coordinator(engine) as running,
    ):
        shown = await running.debug("/debug/engines")
        ids = [f"{engine.endpoint}/{rank}" for rank in (0, 1)]
        assert [(e["id"], e["rank"], e["endpoint"]) for e in shown] == [
            (ids[0], 0, engine.endpoint),
            (ids[1], 1, engine.endpoint),
        ]
        for _ in range(8):
            _, headers, _ = await running.post("/v1/chat/completions", CHAT)
            rank = engine.requests[-1].headers["x-data-parallel-rank"]
            assert headers["x-lineside-engine"] == f"{engine.endpoint}/{rank}"


async def test_debug_endpoints_have_their_shape() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        (shown,) = await running.debug("/debug/engines")
        wanted = "id endpoint model rank generation fresh age_s blocks waiting running inflight"
        assert set(wanted.split()) | {"saturation", "cache_state", "reason"} <= set(shown)
        assert (shown["model"], shown["version"], shown["fresh"]) == (MODEL, "0.32.0", False)
        assert (shown["cache_state"], shown["waiting"]) == ("none", None)
        assert (await running.debug("/debug/config"))["engines"][0]["url"] == engine.url
        assert "groups" in await running.debug("/debug/index")
        assert (await running.debug("/debug/decisions/none"))["error"]["code"] == 404
        async with running.session.get(running.admin + "/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with running.session.get(running.admin + "/metrics") as answer:
            text = await answer.text()
        for line in (
            f'lineside_engine_inflight{{engine="{engine.endpoint}"}} 0.0',
            "lineside_agent_streams 0.0",
            "lineside_index_keys 0.0",
        ):
            assert line in text.splitlines()


async def test_a_dry_run_says_all_and_accounts_nothing() -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        asked = {"path": "/v1/completions", "headers": {}, "body": COMPLETION}
        async with running.session.post(running.admin + "/debug/route", json=asked) as answer:
            said = await answer.json()
        assert said["decision"]["endpoint"] == engine.endpoint
        assert (said["policy"], said["rule"], said["stage"]) == ("default", "default", "default")
        assert (said["tokens"], said["tenant"], said["tags"]) == ("exact", "default", {})
        (candidate,) = said["candidates"]
        assert set(candidate) >= {
            "id",
            "endpoint",
            "model",
            "type",
            "overlap_tokens",
            "uncached_tokens",
            "predicted_ttft_s",
            "dropped_by",
            "ages",
        }
        assert await running.inflight() == [0]
        assert await running.debug("/debug/decisions") == []
        assert engine.bodies == []


async def test_a_drain_lets_streams_finish() -> None:
    async with (
        fake_engines(FakeEngine(words=20, between_s=0.02)) as (engine,),
        coordinator(engine) as running,
    ):
        url = running.http + "/v1/chat/completions"
        async with running.session.post(url, json=CHAT | {"stream": True}) as answer:
            await answer.content.readany()
            running.stop.set()

            async def is_leaving() -> bool:
                return not await running.ready()

            await until(is_leaving)
            rest = await answer.content.read()
        assert rest.endswith(b"data: [DONE]\n\n")
