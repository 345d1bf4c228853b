"""A real Envoy, a real coordinator, simulated engines: what clients and operators see."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from coordinator.config import EngineSpec, Envoy, Gateways
from tests.doors import CHAT, CHAT_PATH, Sim
from tests.envoy_rig import post
from tests.envoys import (
    BUFFERED,
    NONE,
    STREAMED,
    cluster,
    envoy,
    ext_proc,
    listener,
    needs_envoy,
    original,
    picking,
)
from tests.gateways import Running, coordinator
from tests.simulated import MODEL
from tests.waiting import until

pytestmark = [pytest.mark.flow, needs_envoy, pytest.mark.asyncio(loop_scope="module")]

STREAM = CHAT | {"stream": True}


@dataclass
class Rig:
    """What is running."""

    urls: dict[str, str]
    running: Running
    engines: list[str]

    async def record(self, headers: dict[str, str]) -> dict[str, Any]:
        return await self.running.record(headers)

    async def ended(self, headers: dict[str, str]) -> dict[str, Any]:
        """Return a request's outcome, once it has one."""

        async def over() -> bool:
            return bool((await self.record(headers))["outcome"]["end"])

        await until(over)
        outcome: dict[str, Any] = (await self.record(headers))["outcome"]
        return outcome


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(servers: tuple[Sim, Sim]) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        specs = [EngineSpec(url=sim.url) for sim in servers]
        running = await stack.enter_async_context(
            coordinator(
                *specs,
                route="127.0.0.1:0",
                gateways=Gateways(transport="plaintext", anonymous=True),
                envoy=Envoy(answers="usage"),
            )
        )
        engines = [sim.url.removeprefix("http://") for sim in servers]
        listeners = [
            listener("duplex", ext_proc()),
            listener("buffered", ext_proc(request=BUFFERED, response=NONE)),
            listener("streamed", ext_proc(request=BUFFERED, response=STREAMED)),
            listener("headers", ext_proc(request=NONE, response=NONE)),
            listener("original", ext_proc(metadata_options={}), cluster="original"),
        ]
        clusters = [
            picking("pool", engines),
            original("original"),
            cluster("picker", [running.route], http2=True),
        ]
        yield Rig(stack.enter_context(envoy(listeners, clusters)), running, engines)


@pytest.mark.parametrize("gateway", ["duplex", "buffered", "streamed", "original"])
async def test_a_chat_is_answered_and_accounted(rig: Rig, gateway: str) -> None:
    got = await post(rig.urls[gateway], CHAT)
    assert got.status == 200, got.body
    answer = json.loads(got.body)
    assert answer["model"] == MODEL
    record = await rig.record(got.headers)
    assert record["decision"]["endpoint"] in rig.engines
    outcome = await rig.ended(got.headers)
    ends = {"buffered": "unfollowed"}  # its answers do not come by, their heads do
    assert (outcome["end"], outcome["status"]) == (ends.get(gateway, "finished"), 200)


async def test_one_is_counted_where_its_answer_comes_by(rig: Rig) -> None:
    got = await post(rig.urls["duplex"], CHAT)
    outcome = await rig.ended(got.headers)
    usage = json.loads(got.body)["usage"]
    assert (outcome["end"], outcome["status"]) == ("finished", 200)
    assert outcome["prompt_tokens"] == usage["prompt_tokens"]
    assert outcome["completion_tokens"] == usage["completion_tokens"]


@pytest.mark.parametrize("gateway", ["duplex", "streamed"])
async def test_a_streams_usage_is_counted_and_not_shown(rig: Rig, gateway: str) -> None:
    got = await post(rig.urls[gateway], STREAM)
    assert got.status == 200
    assert b'"usage"' not in got.body
    assert got.body.endswith(b"data: [DONE]\n\n")
    outcome = await rig.ended(got.headers)
    assert (outcome["end"], outcome["completion_tokens"]) == ("finished", CHAT["max_tokens"])
    assert outcome["ttft_s"] > 0


async def test_a_stream_whose_usage_was_asked_for_shows_it(rig: Rig) -> None:
    got = await post(rig.urls["duplex"], STREAM | {"stream_options": {"include_usage": True}})
    assert b'"usage"' in got.body


async def test_nothing_is_added_to_a_stream_that_does_not_come_by(rig: Rig) -> None:
    got = await post(rig.urls["buffered"], STREAM)
    assert b'"usage"' not in got.body
    assert got.body.endswith(b"data: [DONE]\n\n")
    outcome = await rig.ended(got.headers)
    assert (outcome["end"], outcome["status"], outcome["ttft_s"]) == ("unfollowed", 200, None)


async def test_anthropics_messages_are_counted_too(rig: Rig) -> None:
    body = {"model": MODEL, "max_tokens": 4, "messages": CHAT["messages"], "stream": True}
    got = await post(rig.urls["duplex"], body, path="/v1/messages")
    assert b"message_stop" in got.body
    outcome = await rig.ended(got.headers)
    assert (outcome["end"], outcome["completion_tokens"]) == ("finished", 4)
    assert outcome["prompt_tokens"] > 0


@pytest.mark.parametrize("gateway", ["duplex", "buffered", "headers", "original"])
async def test_models_are_listed_as_at_our_own_door(rig: Rig, gateway: str) -> None:
    paths = ["/v1/models", "/v1/models?limit=20", f"/v1/models/{MODEL}", "/v1/models/org/nope"]
    for named in ({}, {"anthropic_version": "2023-06-01"}):
        headers = {name.replace("_", "-"): value for name, value in named.items()}
        for path in paths:
            got = await post(rig.urls[gateway], method="GET", path=path, x_request_id="r", **named)
            headers["x-request-id"] = "r"
            async with rig.running.session.get(rig.running.http + path, headers=headers) as own:
                assert (got.status, json.loads(got.body)) == (own.status, await own.json())
                for name in ("content-type", "x-request-id", "request-id"):
                    said = got.headers.get(name, "").partition(";")[0]
                    assert said == own.headers.get(name, "").partition(";")[0]
    got = await post(rig.urls[gateway], method="HEAD", path="/v1/models")
    assert (got.status, got.body) == (200, b"")


ERRORS = [
    pytest.param({"model": "no-such"}, 404, "NotFoundError", id="an unknown model"),
    pytest.param({"model": 7}, 400, "BadRequestError", id="no model"),
]


@pytest.mark.parametrize("gateway", ["duplex", "buffered"])
@pytest.mark.parametrize(("change", "status", "kind"), ERRORS)
async def test_refusals_are_in_openais_words(
    rig: Rig, gateway: str, change: dict[str, Any], status: int, kind: str
) -> None:
    got = await post(rig.urls[gateway], CHAT | change, x_request_id="req-7")
    error = json.loads(got.body)["error"]
    assert (got.status, error["type"], error["code"]) == (status, kind, status)
    assert got.headers["x-request-id"] == "req-7"
    assert (await rig.record(got.headers))["refusal"]["status"] == status


async def test_refusals_are_in_anthropics_words_at_its_path(rig: Rig) -> None:
    got = await post(rig.urls["duplex"], {"model": "no-such", "messages": []}, path="/v1/messages")
    answer = json.loads(got.body)
    assert (got.status, answer["type"]) == (400, "error")
    assert answer["error"]["type"] == "invalid_request_error"


async def test_a_path_that_is_no_api_is_not_sent_on(rig: Rig) -> None:
    got = await post(rig.urls["duplex"], {}, path="/reset_prefix_cache")
    assert (got.status, json.loads(got.body)["error"]["type"]) == (404, "NotFoundError")
    got = await post(rig.urls["duplex"], b"", path="/sleep")
    assert got.status == 404


async def test_a_gateway_that_shows_no_bodies_can_do_with_one_model(rig: Rig) -> None:
    got = await post(rig.urls["headers"], CHAT)
    assert (got.status, json.loads(got.body)["model"]) == (200, MODEL)


@pytest.mark.parametrize("gateway", ["duplex", "streamed", "buffered"])
async def test_nothing_stays_in_flight_of_clients_that_leave(rig: Rig, gateway: str) -> None:
    long = STREAM | {"max_tokens": 400, "ignore_eos": True}

    async def leave() -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.post(rig.urls[gateway] + CHAT_PATH, json=long) as answer,
        ):
            await answer.content.readuntil(b"\n\n")

    await asyncio.gather(*(leave() for _ in range(8)))

    async def quiet() -> bool:
        return await rig.running.inflight() == [0, 0]

    # What does not come by is released when it was predicted to have ended.
    await until(quiet, 2.0 if gateway != "buffered" else 45.0)
