"""A real Envoy, and what an operator can ask of the door: TLS, tokens, lists, policies, hooks."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import EngineSpec, Envoy, Gateway, Gateways
from tests import simulated
from tests.doors import CHAT, Sim
from tests.envoy_rig import dead, post
from tests.envoys import (
    BUFFERED,
    FD,
    NONE,
    Part,
    checked,
    cluster,
    envoy_beside,
    ext_proc,
    listener,
    needs_envoy,
    picking,
    subset_of,
    trusting,
)
from tests.gateways import Running, coordinator
from tests.simulated import MODEL
from tests.waiting import until

pytestmark = [pytest.mark.flow, needs_envoy]

OPEN = Gateways(transport="plaintext", leave_s=0)
ANYONE = Envoy(anonymous=True)
QUIET = ("--no-kv-events", "--faults", "--store-responses")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Sim, Sim]]:
    """Without events, a coordinator is ready at once."""
    with simulated.engine(*QUIET) as one, simulated.engine(*QUIET) as two:
        yield Sim(one["http"]), Sim(two["http"])


@asynccontextmanager
async def behind(
    sims: Sequence[Sim],
    filters: Sequence[Part] = (),
    asks: str = FD,
    answers: str = FD,
    tls: Part | None = None,
    shown: Sequence[Part] = (),
    pool: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[tuple[Running, str]]:
    """Run a coordinator and an Envoy before it; give both."""
    settings = {"route": "127.0.0.1:0", "gateways": OPEN, "envoy": ANYONE} | settings
    async with AsyncExitStack() as stack:
        specs = [EngineSpec(url=sim.url) for sim in sims]
        running = await stack.enter_async_context(coordinator(*specs, **settings))
        await until(running.ready)
        service = {"envoy_grpc": {"cluster_name": "picker"}, "initial_metadata": list(shown)}
        ours = ext_proc(request=asks, response=answers, grpc_service=service)
        picker = cluster("picker", [running.route], http2=True, **(tls or {}))
        engines = picking("pool", pool or [sim.id for sim in sims])
        beside = envoy_beside([listener("door", *filters, ours)], [engines, picker])
        urls = await stack.enter_async_context(beside)
        yield running, urls["door"]


async def asked(url: str) -> int:
    """Return the status of a chat."""
    return (await post(url, CHAT)).status


async def test_the_picker_proves_itself_by_a_certificate_of_its_own(
    sims: tuple[Sim, Sim], tmp_path: Path
) -> None:
    """Gateways that verify nothing can talk to it, and those that trust what it keeps."""
    signed = Gateways(self_signed_dir=str(tmp_path), leave_s=0)
    for tls in (trusting(None), trusting(tmp_path / "tls.crt")):
        async with behind(sims, tls=tls | checked(), gateways=signed) as (_, url):

            async def answers(url: str = url) -> bool:
                return await asked(url) == 200

            await until(answers)


async def test_a_gateway_is_known_by_its_token(sims: tuple[Sim, Sim], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    allowed = (Gateway(name="edge", token_file=str(tmp_path / "token")),)
    known = Gateways(transport="plaintext", allowed=allowed, leave_s=0)
    tenants = Envoy(tenant_header="X-Tenant")
    for token, status in (("secret", 200), ("other", 500)):
        shown = [{"key": "authorization", "value": f"Bearer {token}"}]
        async with behind(sims, shown=shown, gateways=known, envoy=tenants) as (running, url):
            assert await asked(url) == status
            got = await post(url, CHAT, x_tenant="acme")
            if status == 200:
                assert (await running.record(got.headers))["tenant"] == "acme"


async def test_strangers_are_not_answered_unless_that_is_asked_for(sims: tuple[Sim, Sim]) -> None:
    async with behind(sims, envoy=Envoy()) as (_, url):
        assert await asked(url) == 500


async def test_the_list_is_as_long_as_is_asked_for(sims: tuple[Sim, Sim]) -> None:
    """And the account goes where the gateway went."""
    lists = Envoy(anonymous=True, endpoints=3)
    async with behind(sims, answers=NONE, envoy=lists) as (running, url):
        assert await asked(url) == 200
        await sims[0].fault("fail_requests", where="generation", status=503)
        picked = set()

        async def went_on() -> bool:
            got = await post(url, CHAT)
            assert got.status == 200
            record = await running.record(got.headers)
            picked.add(record["decision"]["id"])
            metrics = await running.metrics()
            return metrics['lineside_envoy_served_total{as="fallback"}'] == 1

        await until(went_on)
        assert picked == {sims[1].id}  # whom the record names served, whoever was picked


async def test_a_subset_is_kept_to(sims: tuple[Sim, Sim]) -> None:
    held, nobody = dead()
    with held:
        async with behind(sims, [subset_of([sims[1].id])]) as (running, url):
            assert await asked(url) == 200
            got = await post(url, CHAT)
            assert (await running.record(got.headers))["decision"]["id"] == sims[1].id
        async with behind(sims, [subset_of([nobody])]) as (_, url):
            assert await asked(url) == 503


async def test_a_gateway_that_shows_no_bodies_is_refused_where_policies_hold(
    sims: tuple[Sim, Sim], tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\n"
        "metadata: { name: any }\nspec:\n  rules:\n"
        "  - { name: any, route: { select: [ { type: Local } ] } }\n"
    )
    async with behind(sims, asks=NONE, answers=NONE, resources=str(tmp_path)) as (_, url):
        assert await asked(url) == 500
        error = json.loads((await post(url, CHAT)).body)["error"]
        assert "request_body_mode" in error["message"]
        assert (await post(url, method="GET", path="/v1/models")).status == 200


async def test_the_conformance_suite_finds_its_hooks(sims: tuple[Sim, Sim]) -> None:
    hooks = Envoy(anonymous=True, conformance=True)
    async with behind(sims, asks=BUFFERED, answers=NONE, envoy=hooks) as (_, url):
        assert await asked(url) == 200
        for sim in sims:
            named = {"test-epp-endpoint-selection": sim.id}
            got = await post(url, method="GET", path="/v1/models", **named)
            assert (got.status, got.headers["x-conformance-test-served-endpoint"]) == (200, sim.id)
        got = await post(url, CHAT, **{"test-epp-endpoint-selection": "127.0.0.1"})
        assert got.status == 200
    async with behind(sims) as (_, url):
        assert await asked(url) == 200
        got = await post(url, CHAT, **{"test-epp-endpoint-selection": "127.0.0.1:1"})
        assert "x-conformance-test-served-endpoint" not in got.headers


async def test_tokens_are_counted_where_they_would_be_computed(sims: tuple[Sim, Sim]) -> None:
    async with behind(sims) as (running, url):
        assert await asked(url) == 200
        body = {"model": MODEL, "messages": CHAT["messages"]}
        got = await post(url, body, path="/v1/messages/count_tokens")
        assert (got.status, json.loads(got.body)["input_tokens"] > 0) == (200, True)
        assert await running.inflight() == [0, 0]
        got = await post(url, body | {"model": "none"}, path="/v1/messages/count_tokens")
        assert (got.status, json.loads(got.body)["type"]) == (404, "error")


async def test_engines_that_are_named_by_host_are_found(sims: tuple[Sim, Sim]) -> None:
    """Envoy knows them by address, and would choose by itself where it is told a name."""
    by_name = [Sim(sim.id.replace("127.0.0.1", "localhost")) for sim in sims]
    async with behind(by_name, pool=[sim.id for sim in sims]) as (running, url):

        async def found() -> bool:
            return await asked(url) == 200

        await until(found)
        for _ in range(3):
            assert await asked(url) == 200
        metrics = await running.metrics()
        assert metrics['lineside_envoy_served_total{as="picked"}'] >= 4
        assert metrics['lineside_envoy_served_total{as="elsewhere"}'] == 0


async def test_where_a_request_went_wrong_is_counted(sims: tuple[Sim, Sim]) -> None:
    """Envoy does not know any of our engines, and chooses by itself."""
    async with behind(sims[:1], pool=[sims[1].id]) as (running, url):
        assert await asked(url) == 200
        metrics = await running.metrics()
        assert metrics['lineside_envoy_served_total{as="picked"}'] == 0
        assert metrics['lineside_envoy_served_total{as="elsewhere"}'] == 1


async def test_a_stored_response_is_asked_of_the_engine_that_holds_it(
    sims: tuple[Sim, Sim],
) -> None:
    async with behind(sims) as (_, url):
        body = {"model": MODEL, "input": "hello", "max_output_tokens": 4}
        first = await post(url, body, path="/v1/responses")
        made, served = json.loads(first.body)["id"], first.headers["x-lineside-engine"]
        for _ in range(4):
            got = await post(url, method="GET", path=f"/v1/responses/{made}")
            assert (got.status, json.loads(got.body)["id"]) == (200, made)
            more = await post(url, body | {"previous_response_id": made}, path="/v1/responses")
            assert (more.status, more.headers["x-lineside-engine"]) == (200, served)
        got = await post(url, method="GET", path="/v1/responses/resp_none")
        assert (got.status, json.loads(got.body)["error"]["type"]) == (404, "NotFoundError")
