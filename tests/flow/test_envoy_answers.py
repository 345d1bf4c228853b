"""A real Envoy before our door: answers on their way back, who gave them, and what they used."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from coordinator.doors.envoy.exchange import Terms
from coordinator.doors.envoy.following import Interest
from coordinator.doors.envoy.messages import Aborted, Finished, FirstToken, Note, Served, Unseen
from coordinator.limits import Usage
from tests.envoy_rig import (
    BODY_LIMIT,
    CHAT,
    PIECE_S,
    PIECES,
    Desk,
    dead,
    events,
    picker,
    pod,
    post,
)
from tests.envoys import (
    BUFFERED,
    FD,
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
from tests.waiting import until

pytestmark = [pytest.mark.flow, needs_envoy, pytest.mark.asyncio(loop_scope="module")]

USED = Usage(prompt_tokens=11, completion_tokens=5)
REQUESTS = {"fd": FD, "buffered": BUFFERED}
RESPONSES = {"fd": FD, "streamed": STREAMED, "buffered": BUFFERED, "none": NONE}


@dataclass
class Rig:
    """What is running: a desk for each interest, and listeners for each with all modes."""

    urls: dict[str, str]
    desks: dict[str, Desk]
    pods: list[str]
    unready: set[str]
    dead: str

    def url(self, interest: str, response: str, request: str = "fd") -> str:
        return self.urls[f"{interest}-{request}-{response}"]

    async def notes(self, interest: str, count: int) -> list[Note]:
        """Return what was noted, once there is as much."""
        desk = self.desks[interest]

        async def there() -> bool:
            return len(desk.notes) >= count

        await until(there)
        return desk.notes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        unready: set[str] = set()
        pods = [await stack.enter_async_context(pod(unready)) for _ in range(2)]
        held, refused = dead()
        stack.callback(held.close)
        clusters = [picking("pool", [*pods, refused]), original("original")]
        listeners, desks = [], {}
        for interest in Interest:
            desk = desks[interest.value] = Desk(interest, pods)
            terms = Terms(BODY_LIMIT, interest)
            where = await stack.enter_async_context(picker(desk, terms))
            clusters.append(cluster(interest.value, [where], http2=True))
            for (asked, request), (answered, response) in (
                (one, two) for one in REQUESTS.items() for two in RESPONSES.items()
            ):
                name = f"{interest.value}-{asked}-{answered}"
                listeners.append(listener(name, ext_proc(interest.value, request, response)))
        watcher = ext_proc("usage", NONE, STREAMED, observability_mode=True)
        first = ext_proc("served", BUFFERED, NONE)
        listeners += [
            listener("watched", first, watcher),
            listener("original", ext_proc("served", BUFFERED, NONE), cluster="original"),
            listener("blind", ext_proc("served", response=NONE, response_attributes=[])),
        ]
        yield Rig(stack.enter_context(envoy(listeners, clusters)), desks, pods, unready, refused)


@pytest.fixture
def rig(running: Rig) -> Iterator[Rig]:
    """Nothing is remembered of another test."""
    running.unready.clear()
    for desk in running.desks.values():
        desk.notes.clear()
    yield running


async def streamed(url: str, **headers: str) -> tuple[bytes, int]:
    """Return a streamed answer, and the parts in which it came."""
    got = await post(url, {"model": "m", "stream": True}, **headers)
    assert got.status == 200
    return got.body, got.reads


@pytest.mark.parametrize("interest", [each.value for each in Interest])
async def test_streams_arrive_whole_and_as_they_come(rig: Rig, interest: str) -> None:
    modes = [(request, response) for request in REQUESTS for response in RESPONSES]
    urls = [rig.url(interest, response, request) for request, response in modes]
    answers = await asyncio.gather(*(streamed(url) for url in urls))
    for (_, response), (body, reads) in zip(modes, answers, strict=True):
        assert body == b"".join(events())
        assert reads >= PIECES or response == "buffered"


@pytest.mark.parametrize("interest", [each.value for each in Interest])
async def test_quick_answers_are_not_lost_when_streams_are_closed(rig: Rig, interest: str) -> None:
    """A gateway may have begun to send us an answer when it hears that we want none."""
    for response in RESPONSES:
        url = rig.url(interest, response)
        answers = await asyncio.gather(*(post(url) for _ in range(24)))
        assert [(got.status, b"usage" in got.body) for got in answers] == [(200, True)] * 24


NOTED = [
    pytest.param("none", "none", [Unseen()], id="nothing is wanted"),
    pytest.param("none", "streamed", [Unseen()], id="nothing is wanted of a stream"),
    pytest.param("served", "streamed", [Served("", 0), Unseen(200)], id="its head is wanted"),
    pytest.param("served", "none", [Served("", 0), Unseen(200)], id="its head, and no bodies come"),
    pytest.param(
        "usage",
        "streamed",
        [Served("", 0), FirstToken(), Finished(200, USED)],
        id="all of it is wanted",
    ),
    pytest.param(
        "usage",
        "fd",
        [Served("", 0), FirstToken(), Finished(200, USED)],
        id="all of it is wanted, and must be given back",
    ),
    pytest.param(
        "served",
        "fd",
        [Served("", 0), FirstToken(), Finished(200, Usage())],
        id="its head is wanted, and all must be given back",
    ),
]


@pytest.mark.parametrize(("interest", "response_mode", "notes"), NOTED)
async def test_what_is_noted_of_a_stream(
    rig: Rig, interest: str, response_mode: str, notes: list[Note]
) -> None:
    await streamed(rig.url(interest, response_mode), x_test_pick=rig.pods[1])
    expected = [Served(rig.pods[1], n.place) if isinstance(n, Served) else n for n in notes]
    assert await rig.notes(interest, len(notes)) == expected


@pytest.mark.parametrize("response_mode", ["fd", "streamed", "buffered"])
async def test_a_whole_answer_is_counted(rig: Rig, response_mode: str) -> None:
    got = await post(rig.url("usage", response_mode), x_test_pick=rig.pods[0])
    assert (got.status, got.seen["pod"]) == (200, rig.pods[0])
    assert await rig.notes("usage", 2) == [Served(rig.pods[0], 0), Finished(200, USED)]


async def test_a_filter_that_only_watches_counts_too(rig: Rig) -> None:
    body, _ = await streamed(rig.urls["watched"], x_test_pick=rig.pods[0])
    assert body == b"".join(events())
    notes = await rig.notes("usage", 3)
    assert notes == [Served(rig.pods[0], None), FirstToken(), Finished(200, USED)]
    assert rig.desks["served"].notes == [Served(rig.pods[0], 0), Unseen(200)]


SERVED = [
    pytest.param("served-fd-none", "{dead},{1}", "{1}", 1, id="a fallback"),
    pytest.param("served-fd-none", "127.0.0.1:1", None, None, id="a host that nobody named"),
    pytest.param("original", "{0}", "{0}", 0, id="by the attribute, where no metadata says it"),
    pytest.param("blind", "{0}", "{0}", 0, id="by the metadata, without the attribute"),
]


@pytest.mark.parametrize(("gateway", "told", "served", "place"), SERVED)
async def test_where_a_request_went_is_noted(
    rig: Rig, gateway: str, told: str, served: str | None, place: int | None
) -> None:
    def named(text: str) -> str:
        return text.format(*rig.pods, dead=rig.dead)

    got = await post(rig.urls[gateway], x_test_pick=named(told))
    notes = await rig.notes("served", 2)
    expected = got.seen["pod"] if served is None else named(served)
    assert notes == [Served(expected, place), Unseen(200)]


async def test_an_error_of_the_backend_ends_a_request(rig: Rig) -> None:
    rig.unready.update(rig.pods)
    got = await post(rig.url("served", "none"), x_test_pick=rig.pods[0])
    assert got.status == 503
    assert (await rig.notes("served", 2))[1] == Finished(503, Usage())


@pytest.mark.parametrize("request_mode", REQUESTS)
async def test_a_client_that_leaves_while_its_request_is_decided_is_noticed(
    rig: Rig, request_mode: str
) -> None:
    desk = rig.desks["usage"]
    before = desk.given_up
    url = rig.url("usage", "fd", request_mode) + CHAT
    headers = {"x-test-action": "hang"}
    async with aiohttp.ClientSession() as client:
        asking = asyncio.create_task(client.post(url, json={"model": "m"}, headers=headers))
        await until(_asked(desk))
        asking.cancel()

    async def given_up() -> bool:
        return desk.given_up == before + 1

    await until(given_up, 0.25)  # sooner than the desk's own deadline
    desk.questions.clear()


def _asked(desk: Desk) -> Any:
    async def asked() -> bool:
        return bool(desk.questions)

    desk.questions.clear()
    return asked


@pytest.mark.parametrize("response_mode", ["fd", "streamed"])
async def test_a_client_that_leaves_a_stream_is_noticed(rig: Rig, response_mode: str) -> None:
    url = rig.url("usage", response_mode) + CHAT
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, json={"model": "m", "stream": True}) as answer,
    ):
        await answer.content.readuntil(b"\n\n")
        await asyncio.sleep(PIECE_S * 1.5)
    notes = await rig.notes("usage", 3)
    assert isinstance(notes[2], Aborted)
    assert notes[2].usage.partial
    assert 1 <= (notes[2].usage.completion_tokens or 0) < PIECES


async def test_a_provider_gets_its_own_body_at_its_own_route(rig: Rig) -> None:
    """Its name in a header leads there; this Envoy has no such route, so the pool shows it."""
    got = await post(rig.url("served", "none"), {"model": "theirs"}, authorization="Bearer mine")
    sent = got.seen["headers"]
    assert (got.status, got.seen["model"], sent["x-lineside-backend"]) == (200, "gpt", "provider")
    assert "x-gateway-destination-endpoint" not in sent
    assert json.loads(got.body)["seen"]["length"] == len(json.dumps({"model": "gpt"}))
