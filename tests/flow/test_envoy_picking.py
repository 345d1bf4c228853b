"""A real Envoy before our door: picking, rewriting and refusing, in every body mode."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from coordinator.doors.envoy.exchange import Terms
from coordinator.doors.envoy.following import Interest
from tests.envoy_rig import BODY_LIMIT, CHAT, LONG_NAME, Desk, dead, picker, pod, post
from tests.envoys import (
    BUFFERED,
    DESTINATION,
    NONE,
    STREAMED,
    cluster,
    envoy,
    ext_proc,
    listener,
    needs_envoy,
    original,
    picking,
    subset_from,
    subset_of,
)

pytestmark = [pytest.mark.flow, needs_envoy, pytest.mark.asyncio(loop_scope="module")]

MODES = ("duplex", "buffered")


@dataclass
class Rig:
    """What is running."""

    urls: dict[str, str]
    desk: Desk
    pods: list[str]
    unready: set[str]
    dead: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        unready: set[str] = set()
        pods = [await stack.enter_async_context(pod(unready)) for _ in range(3)]
        held, refused = dead()
        stack.callback(held.close)
        desk = Desk(Interest.SERVED, pods)
        where = await stack.enter_async_context(picker(desk, Terms(BODY_LIMIT)))
        hasty = await stack.enter_async_context(picker(desk, Terms(BODY_LIMIT), receive_s=0.3))
        big = {"per_connection_buffer_limit_bytes": 32 * 2**20}
        listeners = [
            listener("duplex", subset_from("x-test-subset"), ext_proc()),
            listener("buffered", ext_proc(request=BUFFERED, response=NONE)),
            listener("roomy", ext_proc(request=BUFFERED, response=NONE), **big),
            listener("streamed", ext_proc(request=STREAMED, response=STREAMED)),
            listener("headers", ext_proc(request=NONE, response=NONE)),
            listener("original", ext_proc(request=BUFFERED, response=NONE), cluster="original"),
            listener("ai", ext_proc(metadata_options={}), cluster="original"),
            listener("by-header", ext_proc(), cluster="by-header"),
            listener("listed", subset_of([pods[2]]), ext_proc()),
            listener("empty", subset_of([]), ext_proc()),
            listener("hasty", ext_proc("hasty")),
            listener("no-retry", ext_proc(), retry=False),
        ]
        clusters = [
            picking("pool", [*pods, refused]),
            picking("by-header", [*pods, refused], ("header",)),
            original("original"),
            cluster("picker", [where], http2=True),
            cluster("hasty", [hasty], http2=True),
        ]
        yield Rig(stack.enter_context(envoy(listeners, clusters)), desk, pods, unready, refused)


@pytest.fixture
def rig(running: Rig) -> Rig:
    """Nothing is remembered of another test."""
    running.desk.questions.clear()
    running.desk.notes.clear()
    running.unready.clear()
    return running


@pytest.mark.parametrize(
    "gateway", ["duplex", "buffered", "by-header", "streamed", "headers", "original", "ai"]
)
@pytest.mark.parametrize("at", [0, 2])
async def test_a_request_goes_where_it_was_sent(rig: Rig, gateway: str, at: int) -> None:
    got = await post(rig.urls[gateway], x_test_pick=rig.pods[at])
    assert (got.status, got.seen["pod"], got.seen["length"]) == (200, rig.pods[at], 14)


@pytest.mark.parametrize("gateway", ["duplex", "buffered", "streamed", "headers", "original", "ai"])
async def test_a_request_without_a_body_goes_where_it_was_sent(rig: Rig, gateway: str) -> None:
    got = await post(rig.urls[gateway], method="GET", path="/v1/models", x_test_pick=rig.pods[1])
    assert (got.status, got.seen["pod"], got.seen["method"]) == (200, rig.pods[1], "GET")


@pytest.mark.parametrize("gateway", ["duplex", "buffered", "original", "ai"])
@pytest.mark.parametrize("name", ["long", "shortened"])
async def test_a_body_of_another_length_arrives(rig: Rig, gateway: str, name: str) -> None:
    got = await post(rig.urls[gateway], {"model": name, "n": 1}, x_test_pick=rig.pods[0])
    model = LONG_NAME if name == "long" else "m"
    length = len(json.dumps({"model": model, "n": 1}))
    assert (got.status, got.seen["model"], got.seen["length"]) == (200, model, length)


@pytest.mark.parametrize("gateway", MODES)
async def test_a_body_that_stays_as_it_is_arrives_byte_for_byte(rig: Rig, gateway: str) -> None:
    body = b'{ "model":"m",  "n": 1 }'
    got = await post(rig.urls[gateway], body, x_test_pick=rig.pods[0])
    assert (got.status, got.seen["length"]) == (200, len(body))


async def test_a_buffered_body_has_its_length_and_a_streamed_one_has_none(rig: Rig) -> None:
    lengths = {}
    for gateway in MODES:
        got = await post(rig.urls[gateway], {"model": "long"}, x_test_pick=rig.pods[0])
        sent = got.seen["headers"]
        lengths[gateway] = (sent.get("content-length"), sent.get("transfer-encoding"))
    whole = str(len(json.dumps({"model": LONG_NAME})))
    assert lengths == {"duplex": (None, "chunked"), "buffered": (whole, None)}


@pytest.mark.parametrize("gateway", ["duplex", "roomy"])
@pytest.mark.parametrize("model", ["long", "as it is"])
async def test_six_megabytes_arrive(rig: Rig, gateway: str, model: str) -> None:
    body = {"model": model, "text": "x" * 6_000_000}
    got = await post(rig.urls[gateway], body, x_test_pick=rig.pods[0])
    sent = json.dumps({**body, "model": LONG_NAME if model == "long" else model})
    assert (got.status, got.seen["length"]) == (200, len(sent))


async def test_envoys_own_buffer_is_the_limit_where_it_buffers(rig: Rig) -> None:
    got = await post(rig.urls["buffered"], {"model": "m", "text": "x" * 1_500_000})
    assert (got.status, rig.desk.questions) == (413, [])


@pytest.mark.parametrize("gateway", MODES)
@pytest.mark.parametrize("size", [1, 2, 5_000, 200_000])
async def test_a_chunked_upload_arrives(rig: Rig, gateway: str, size: int) -> None:
    body = {"model": "long", "text": "x" * size}
    step = max(1, size // 10)
    got = await post(rig.urls[gateway], body, chunks=step, x_test_pick=rig.pods[0])
    sent = json.dumps({**body, "model": LONG_NAME})
    assert (got.status, got.seen["length"]) == (200, len(sent))


@pytest.mark.parametrize("gateway", ["duplex", "roomy"])
@pytest.mark.parametrize("chunks", [0, 2**20], ids=["of a known length", "chunked"])
async def test_a_body_beyond_the_limit_is_refused(rig: Rig, gateway: str, chunks: int) -> None:
    got = await post(rig.urls[gateway], b"x" * (BODY_LIMIT + 1), chunks=chunks)
    error = json.loads(got.body)["error"]
    assert (got.status, error["type"]) == (413, "RequestEntityTooLargeError")
    assert rig.desk.questions == []


@pytest.mark.parametrize("gateway", [*MODES, "headers", "streamed", "ai"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_the_clients_answer(rig: Rig, gateway: str, status: int) -> None:
    got = await post(rig.urls[gateway], x_test_action=str(status))
    word = {429: "budget", 503: "none"}[status]
    assert (got.status, json.loads(got.body)) == (status, {"error": word})
    assert got.headers.get("retry-after") == {429: "7", 503: None}[status]


@pytest.mark.parametrize("gateway", MODES)
async def test_a_body_that_is_no_json_gets_400(rig: Rig, gateway: str) -> None:
    got = await post(rig.urls[gateway], b"{oops")
    assert (got.status, got.headers["content-type"]) == (400, "application/json")
    assert json.loads(got.body)["error"]["message"] == "the body must be valid JSON in UTF-8"


@pytest.mark.parametrize("gateway", [*MODES, "headers"])
async def test_a_decision_that_hangs_is_ended_by_its_own_deadline(rig: Rig, gateway: str) -> None:
    before = rig.desk.given_up
    got = await post(rig.urls[gateway], x_test_action="hang")
    assert (got.status, got.headers["retry-after"]) == (503, "1")
    assert "0.3 s" in json.loads(got.body)["error"]["message"]
    assert rig.desk.given_up == before + 1


async def test_a_body_that_does_not_come_is_not_waited_for(rig: Rig) -> None:
    async def stalls() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(2)

    url = rig.urls["hasty"] + CHAT
    async with aiohttp.ClientSession() as client, client.post(url, data=stalls()) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (408, "RequestTimeoutError")
    assert rig.desk.questions == []


@pytest.mark.parametrize("gateway", [*MODES, "headers"])
async def test_a_mistake_of_ours_is_an_answer_too(
    rig: Rig, gateway: str, caplog: pytest.LogCaptureFixture
) -> None:
    got = await post(rig.urls[gateway], x_test_action="break")
    assert (got.status, json.loads(got.body)["error"]["type"]) == (500, "InternalServerError")
    assert "a mistake" not in got.body.decode()


@pytest.mark.parametrize("gateway", [*MODES, "original", "ai"])
async def test_a_client_does_not_choose_its_endpoint(rig: Rig, gateway: str) -> None:
    headers = {DESTINATION: rig.pods[2]}
    got = await post(rig.urls[gateway], x_test_pick=rig.pods[0], **headers)
    assert (got.status, got.seen["pod"]) == (200, rig.pods[0])


@pytest.mark.parametrize("gateway", MODES)
async def test_control_headers_end_here(rig: Rig, gateway: str) -> None:
    sent = {
        "x-gateway-inference-objective": "o",
        "x-llm-d-inference-fairness-id": "f",
        "x-lineside-backend": "provider",
        "x-lineside-decision": "forged",
    }
    got = await post(rig.urls[gateway], {"model": "m"}, x_test_pick=rig.pods[0], **sent)
    assert got.seen["headers"].get("x-lineside-decision") == "d-1"
    assert not {*sent} - {"x-lineside-decision"} & got.seen["headers"].keys()


@pytest.mark.parametrize(
    ("hint", "status"),
    [
        pytest.param("{2},127.0.0.1:1", 200, id="a string of endpoints"),
        pytest.param("127.0.0.1", 200, id="a host with all its ports"),
        pytest.param("127.0.0.1:1", 503, id="none that is here"),
    ],
)
async def test_a_subset_as_a_string_is_kept_to(rig: Rig, hint: str, status: int) -> None:
    got = await post(rig.urls["duplex"], x_test_subset=hint.replace("{2}", rig.pods[2]))
    assert got.status == status
    assert status == 503 or got.seen["pod"] in (rig.pods if hint == "127.0.0.1" else rig.pods[2:])


async def test_a_subset_as_a_list_is_kept_to(rig: Rig) -> None:
    pods = {(await post(rig.urls["listed"])).seen["pod"] for _ in range(4)}
    assert pods == {rig.pods[2]}


async def test_an_empty_subset_is_no_absent_one(rig: Rig) -> None:
    assert (await post(rig.urls["empty"])).status == 503


FALLBACKS = [
    pytest.param("duplex", "{dead},{1}", "{1}", id="the first is dead"),
    pytest.param("buffered", "{dead},{1}", "{1}", id="the first is dead, buffered"),
    pytest.param("by-header", "{dead},{1}", "{1}", id="the first is dead, by the header"),
    pytest.param("duplex", "{0},{2}", "{2}", id="the first answers 503"),
    pytest.param("duplex", "127.0.0.1:1,{2}", "{2}", id="the first is none of the cluster"),
    pytest.param("no-retry", "{dead},{1}", None, id="nothing is tried again"),
    pytest.param("original", "{dead},{1}", None, id="a gateway that knows no lists"),
    pytest.param("ai", "{1},{2}", None, id="one that knows none, though the first lives"),
]


@pytest.mark.parametrize(("gateway", "told", "served"), FALLBACKS)
async def test_a_list_of_endpoints_is_gone_through(
    rig: Rig, gateway: str, told: str, served: str | None
) -> None:
    places = {str(at): pod for at, pod in enumerate(rig.pods)} | {"dead": rig.dead}
    rig.unready.add(rig.pods[0])
    for name, address in places.items():
        told = told.replace(f"{{{name}}}", address)
        served = served and served.replace(f"{{{name}}}", address)
    got = await post(rig.urls[gateway], x_test_pick=told)
    assert (got.status, got.seen["pod"] if got.status == 200 else None) == (
        200 if served else 503,
        served,
    )
