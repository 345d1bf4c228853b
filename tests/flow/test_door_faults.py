"""What clients get when an engine fails, before simulated engines."""

import asyncio
from functools import partial

import pytest

from coordinator.config import Timeouts
from tests.doors import (
    CHAT,
    CHAT_PATH,
    LONG,
    Sim,
    before,
    begun,
    client_of,
    ends_in_error,
    is_error,
    stream,
)
from tests.waiting import until

pytestmark = pytest.mark.flow


async def test_an_engine_that_cannot_be_reached_is_passed_over(sims: tuple[Sim, Sim]) -> None:
    async with before(*sims, probe_s=60.0) as running:
        await sims[0].fault("refuse_connections", for_s=1.5)
        for _ in range(8):
            status, headers, _ = await running.post(CHAT_PATH, CHAT)
            assert (status, headers["x-lineside-engine"]) == (200, sims[1].id)
        await until(sims[0].listens)


async def test_no_engine_that_can_be_reached(sims: tuple[Sim, Sim]) -> None:
    async with before(sims[0], probe_s=60.0) as running:
        await sims[0].fault("refuse_connections", for_s=1.0)
        for expected in (502, 503):
            status, headers, body = await running.post(CHAT_PATH, CHAT | {"stream": True})
            assert (status, headers["retry-after"]) == (expected, "1")
            is_error(body, expected)
        await until(sims[0].listens)


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
        await until(partial(begun, running))
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
