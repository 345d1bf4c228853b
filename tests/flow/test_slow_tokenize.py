"""An engine whose tokenizing hangs costs a request its time budget, a few times, and says so."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.config import EngineSpec
from coordinator.tokens.engine_tokenize import OPENS_AFTER
from tests import simulated
from tests.gateways import Running, coordinator
from tests.waiting import until

pytestmark = pytest.mark.flow

MODEL = str(Path(__file__).parents[2] / "simulate" / "model")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.fixture(scope="module")
def engine() -> Any:
    with simulated.engine("--faults") as listening:
        yield f"http://{listening['http']}"


@pytest.fixture
async def running(engine: str) -> AsyncIterator[Running]:
    async with coordinator(EngineSpec(url=engine)) as running:
        yield running


def chat(content: Any, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"model": "tiny-qwen3", "messages": [message], "max_tokens": 2, **fields}


async def decided(running: Running, body: dict[str, Any]) -> tuple[int, str, str]:
    """Return a request's status, and what its record says of its tokens."""
    status, headers, _ = await running.post("/v1/chat/completions", body)
    record = await running.record(headers)
    return status, record["tokens"], record["tokens_reason"]


async def first_late(running: Running) -> tuple[int, str, str]:
    """Return the first answer that came while the tokenizer hung: one may be under way before."""
    for n in range(10):
        answer = await decided(running, chat(f"early {n}"))
        if answer[1] != "engine":
            break
    return answer


async def test_a_hanging_tokenizer_holds_up_no_request(running: Running, engine: str) -> None:
    async def answered() -> bool:  # on a busy machine not at once within the budget
        return await decided(running, chat("hello")) == (200, "engine", "no_tokenizer")

    await until(answered, 30)
    async with aiohttp.ClientSession(engine) as control:
        await simulated.post(control, "/sim/faults", fault="hang", where="tokenize", for_s=10)
        began = time.monotonic()
        answers = [await first_late(running)]
        answers += [await decided(running, chat(f"hello {n}")) for n in range(OPENS_AFTER + 1)]
        took = time.monotonic() - began
        async with control.delete("/sim/faults") as cleared:
            assert cleared.status == 200
    late, open_ = (200, "unknown", "budget"), (200, "unknown", "breaker_open")
    assert answers == [late] * OPENS_AFTER + [open_] * 2
    assert took < 5.0, "each would have waited ten seconds"
    async with running.session.get(f"{running.admin}/metrics") as page:
        metrics = await page.text()
    for reason, least in (("budget", OPENS_AFTER), ("breaker_open", 2)):
        counted = f'lineside_tokenized_requests_total{{reason="{reason}",state="unknown"}}'
        (line,) = (line for line in metrics.splitlines() if line.startswith(counted))
        assert float(line.split()[-1]) >= least


async def test_pictures_are_matched_by_nothing_but_the_text_before_them(engine: str) -> None:
    """The first turn is a text that the engine's cache would hold; a picture ends the match."""
    text = "the import statement finds a module " * 40
    parts = [{"type": "text", "text": text}, IMAGE]
    async with coordinator(EngineSpec(url=engine, tokenizer=MODEL)) as running:

        async def confirmed() -> bool:
            return (await routed(running, chat("hello")))["tokens_reason"] == "local"

        await until(confirmed, 30)
        plain = await routed(running, chat(text))
        after = await routed(running, chat(parts))
        before = await routed(running, chat([IMAGE, *parts]))
    assert (plain["tokens"], plain["tokens_reason"]) == ("exact", "local")
    for seen in (after, before):
        assert (seen["tokens"], seen["tokens_reason"]) == ("exact", "media")
        assert seen["prompt_tokens"] is None, "what a picture comes to is not known here"


async def routed(running: Running, body: dict[str, Any]) -> dict[str, Any]:
    asked = {"path": "/v1/chat/completions", "headers": {}, "body": body}
    async with running.session.post(f"{running.admin}/debug/route", json=asked) as answer:
        assert answer.status == 200
        record: dict[str, Any] = await answer.json()
        return record
