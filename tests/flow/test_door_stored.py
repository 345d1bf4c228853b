"""Stored responses, models, pages of other origins: what the gateway answers beside generation."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import pytest

from coordinator.config import EngineSpec
from tests import simulated
from tests.doors import Sim
from tests.gateways import Running, coordinator
from tests.simulated import MODEL
from tests.waiting import until

pytestmark = pytest.mark.flow

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def keeping() -> Iterator[tuple[Sim, Sim, Sim]]:
    options = ("--faults", "--store-responses", "--blocks", "2000")
    with (
        simulated.engine(*options) as one,
        simulated.engine(*options) as two,
        simulated.engine(*options) as three,
    ):
        yield Sim(one["http"]), Sim(two["http"]), Sim(three["http"])


async def ask(
    running: Running, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    async with running.session.request(method, running.http + path, headers=headers) as answer:
        body = await answer.read()
        named = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, named, json.loads(body) if body else None


async def make(running: Running, **more: Any) -> tuple[str, dict[str, str]]:
    """Make a response; return its id and the headers that came with it."""
    body = {"model": MODEL, "input": "hello", "max_output_tokens": 4, **more}
    status, headers, said = await running.post("/v1/responses", body)
    assert status == 200, said
    if not more.get("stream"):
        made: str = json.loads(said)["id"]
        return made, headers
    first = said.split(b"\n\n")[0].rpartition(b"data: ")[2]
    made = json.loads(first)["response"]["id"]
    return made, headers


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_what_goes_on_from_a_response_goes_to_its_engine(
    keeping: tuple[Sim, Sim, Sim], streams: bool
) -> None:
    specs = [EngineSpec(url=sim.url) for sim in keeping]
    async with coordinator(*specs) as running:
        response, headers = await make(running, stream=streams)
        holder = headers["x-lineside-engine"]
        for _ in range(6):
            response, headers = await make(running, previous_response_id=response, stream=streams)
            assert headers["x-lineside-engine"] == holder
            record = await running.record(headers)
            assert (record["tokens"], record["tokens_reason"]) == ("unknown", "continuation")
            dropped = [c["dropped_by"] for c in record["candidates"] if c["id"] != holder]
            assert dropped == ["subset", "subset"]
        status, _, shown = await ask(running, "GET", f"/v1/responses/{response}")
        assert (status, shown["id"]) == (200, response)
        status, headers, said = await ask(running, "POST", f"/v1/responses/{response}/cancel")
        assert (status, said["error"]["message"]) == (400, "Cannot cancel a synchronous response.")
        assert "x-request-id" in headers
        status, headers, said = await ask(running, "DELETE", f"/v1/responses/{response}")
        assert (status, said["error"]["type"]) == (404, "NotFoundError")  # no vLLM deletes any
        assert (await running.record(headers))["refusal"]["reason"] == "not_served"
        assert await running.inflight() == [0, 0, 0]


async def test_another_coordinator_finds_who_holds_a_response(
    keeping: tuple[Sim, Sim, Sim],
) -> None:
    specs = [EngineSpec(url=sim.url) for sim in keeping]
    async with coordinator(*specs) as one, coordinator(*specs) as other:
        response, headers = await make(one)
        status, _, shown = await ask(other, "GET", f"/v1/responses/{response}")
        assert (status, shown["id"]) == (200, response)
        _, found = await make(other, previous_response_id=response)
        assert found["x-lineside-engine"] == headers["x-lineside-engine"]


async def test_a_response_that_nobody_holds(keeping: tuple[Sim, Sim, Sim]) -> None:
    specs = [EngineSpec(url=sim.url) for sim in keeping]
    async with coordinator(*specs) as running:
        body = {"model": MODEL, "input": "x", "previous_response_id": "resp_none"}
        status, headers, said = await running.post("/v1/responses", body)
        words = "no engine here is known to hold this response; send the whole conversation"
        assert (status, json.loads(said)["error"]["message"]) == (404, words)
        assert (await running.record(headers))["refusal"]["reason"] == "response_unknown"
        for method in ("GET", "DELETE"):
            status, _, shown = await ask(running, method, "/v1/responses/resp_none")
            assert (status, shown["error"]["message"]) == (404, words)
        assert await running.inflight() == [0, 0, 0]


async def test_a_response_goes_on_with_a_model_of_its_engine_only() -> None:
    with ExitStack() as engines:
        made_by, other = (
            engines.enter_context(simulated.engine("--store-responses", "--model-name", name))
            for name in (MODEL, "other")
        )
        specs = [EngineSpec(url=f"http://{each['http']}") for each in (made_by, other)]
        async with coordinator(*specs) as running:
            response, _ = await make(running)
            body = {"model": "other", "input": "x", "previous_response_id": response}
            status, headers, said = await running.post("/v1/responses", body)
            assert (status, json.loads(said)["error"]["message"]) == (
                400,
                "the backend that holds the response cannot take `other`; use the model that made"
                " it, or send the whole conversation",
            )
            assert (await running.record(headers))["refusal"]["reason"] == "response_elsewhere"


async def test_a_response_whose_engine_is_away() -> None:
    with ExitStack() as engines:
        ends = ExitStack()
        well = engines.enter_context(simulated.engine("--store-responses"))["http"]
        lost = ends.enter_context(simulated.engine("--store-responses"))["http"]
        engines.callback(ends.close)
        specs = [EngineSpec(url=f"http://{address}") for address in (well, lost)]
        async with coordinator(*specs) as running:
            made: dict[str, str] = {}
            while lost not in made:
                response, headers = await make(running)
                made[headers["x-lineside-engine"]] = response
            ends.close()

            async def away() -> bool:
                shown = await running.debug("/debug/engines")
                return any(engine["id"] == lost and engine["away"] for engine in shown)

            await until(away)
            body = {"model": MODEL, "input": "x", "previous_response_id": made[lost]}
            status, headers, _ = await running.post("/v1/responses", body)
            assert (status, headers["retry-after"]) == (503, "1")
            assert (await running.record(headers))["refusal"]["reason"] == "no_engine_ready"


async def test_models_in_either_shape(keeping: tuple[Sim, Sim, Sim]) -> None:
    async with coordinator(EngineSpec(url=keeping[0].url)) as running:
        status, headers, listed = await ask(running, "GET", "/v1/models", ANTHROPIC)
        (card,) = listed["data"]
        assert (status, headers["request-id"]) == (200, headers["x-request-id"])
        assert listed == {"data": [card], "has_more": False, "first_id": MODEL, "last_id": MODEL}
        made = datetime.fromisoformat(card["created_at"])
        assert card == {
            "type": "model",
            "id": MODEL,
            "display_name": MODEL,
            "created_at": f"{made:%Y-%m-%dT%H:%M:%SZ}",
        }
        assert (await ask(running, "GET", f"/v1/models/{MODEL}", ANTHROPIC))[2] == card
        _, _, listed = await ask(running, "GET", "/v1/models")
        assert (await ask(running, "GET", f"/v1/models/{MODEL}"))[2] == listed["data"][0]
        status, _, said = await ask(running, "GET", "/v1/models/org/nope")
        assert (status, said["error"]["type"]) == (404, "NotFoundError")
        status, _, said = await ask(running, "GET", "/v1/models/nope", ANTHROPIC)
        assert (status, said["error"]["type"]) == (404, "not_found_error")


PAGE = {"origin": "https://page.example", "access-control-request-method": "POST"}


async def test_pages_of_other_origins_are_let_in_by_a_setting_alone(
    keeping: tuple[Sim, Sim, Sim],
) -> None:
    spec, origin = EngineSpec(url=keeping[0].url), PAGE["origin"]
    async with coordinator(spec) as running:
        status, headers, _ = await ask(running, "OPTIONS", "/v1/messages", PAGE)
        assert (status, "access-control-allow-origin" in headers) == (405, False)
        status, headers, _ = await ask(running, "GET", "/v1/models", PAGE)
        assert (status, "access-control-allow-origin" in headers) == (200, False)
    async with coordinator(spec, cors_origins=(origin,)) as running:
        wanted = PAGE | {"access-control-request-headers": "x-api-key"}
        status, headers, _ = await ask(running, "OPTIONS", "/v1/messages", wanted)
        assert (status, headers["access-control-allow-origin"]) == (204, origin)
        assert headers["access-control-allow-headers"] == "x-api-key"
        _, headers = await make(running)
        assert "access-control-allow-origin" not in headers
        status, headers, _ = await ask(running, "GET", "/v1/models", PAGE)
        assert (headers["access-control-allow-origin"], headers["vary"]) == (origin, "Origin")
        other = PAGE | {"origin": "https://other.example"}
        status, headers, _ = await ask(running, "OPTIONS", "/v1/messages", other)
        assert (status, "access-control-allow-origin" in headers) == (405, False)
    async with coordinator(spec, cors_origins=("*",)) as running:
        status, headers, _ = await ask(running, "OPTIONS", "/v1/models", other)
        assert (status, headers["access-control-allow-origin"]) == (204, other["origin"])
