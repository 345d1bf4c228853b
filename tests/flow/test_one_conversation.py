"""One conversation as a chat, a response and a message: the same keys, so the same engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import simulate
from agent.dialling import Dialling
from agent.report import Reporter
from coordinator.config import EngineSpec
from lineside.clock import SystemClock
from lineside.ids import NodeId
from tests import simulated
from tests.fronts import Front, front_of
from tests.gateways import Running, coordinator
from tests.simulated import MODEL
from tests.streams import FakeHub
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

FOLDER = Path(simulate.__file__).parent / "model"
ENGINES = 4
PREFILL_TOKENS_PER_S = 1000.0
"""Slow enough that a prompt's prefix outweighs all else."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front() -> AsyncIterator[Front]:
    """Engines, and an agent that vouches for empty caches: what is known of them we sent."""
    with ExitStack() as stack:
        options = ("--blocks", "2000", "--store-responses")
        found = [stack.enter_context(simulated.engine(*options)) for _ in range(ENGINES)]
        specs = [EngineSpec(url=f"http://{e['http']}", tokenizer=str(FOLDER)) for e in found]
        async with coordinator(*specs, prefill_tokens_per_s=PREFILL_TOKENS_PER_S) as running:
            reporter = Reporter(
                Dialling.plaintext().to(running.grpc),
                NodeId("local"),
                "life",
                FakeHub(),
                SystemClock(),
            )
            reporting = asyncio.create_task(reporter.run())
            try:
                await until(running.ready)
                await until(lambda: knows_tokens(running))
                async with front_of(running, running.http) as made:
                    yield made
            finally:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)


async def knows_tokens(running: Running) -> bool:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    asked = {"path": "/v1/chat/completions", "body": body}
    async with running.session.post(running.admin + "/debug/route", json=asked) as answer:
        tokens: str = (await answer.json())["tokens"]
        return tokens == "exact"


def system(topic: str) -> str:
    return f"You know everything about {topic}. " * 40


async def as_chat(front: Front, topic: str) -> None:
    turns: Any = [
        {"role": "system", "content": system(topic)},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "A thing."},
        {"role": "user", "content": "Why?"},
    ]
    await front.openai.chat.completions.create(model=MODEL, messages=turns, max_tokens=2)


async def as_response(front: Front, topic: str) -> None:
    said: Any = [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "A thing."},
        {"role": "user", "content": "Why?"},
    ]
    await front.openai.responses.create(
        model=MODEL, instructions=system(topic), input=said, max_output_tokens=2
    )


async def as_message(front: Front, topic: str) -> None:
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A thing."},
        {"role": "user", "content": "Why?"},
    ]
    blocks: Any = [{"type": "text", "text": system(topic)}]
    await front.anthropic.messages.create(model=MODEL, system=blocks, messages=turns, max_tokens=2)


Say = Callable[[Front, str], Awaitable[None]]


@pytest.mark.parametrize(
    "says",
    [
        pytest.param((as_chat, as_response, as_message), id="a chat first"),
        pytest.param((as_response, as_message, as_chat), id="a response first"),
        pytest.param((as_message, as_chat, as_response), id="a message first"),
    ],
)
async def test_one_conversation_in_three_apis_has_one_prompt_and_one_engine(
    front: Front, says: tuple[Say, ...]
) -> None:
    topic = f"trains, {says[0].__name__}"
    for say in says:
        await say(front, topic)
    latest = (await front.records())[: len(says)]
    records = [await front.running.debug(f"/debug/decisions/{r['id']}") for r in latest][::-1]
    assert len({record["api"] for record in records}) == len(says)
    assert {record["tokens"] for record in records} == {"exact"}
    assert len({record["decision"]["id"] for record in records}) == 1
    (tokens,) = {record["prompt_tokens"] for record in records}
    whole = tokens // 32 * 32  # the engine's blocks
    outcomes = [record["outcome"] for record in records]
    assert [outcome["prompt_tokens"] for outcome in outcomes] == [tokens] * 3
    assert [outcome["cached_tokens"] for outcome in outcomes] == [0, whole, whole]
    # What was expected came from the keys of the first one's prompt: the others' are the same.
    assert [outcome["speculative_tokens"] for outcome in outcomes][1:] == [tokens // 64 * 64] * 2
