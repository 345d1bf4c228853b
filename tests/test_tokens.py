"""Where a request's tokens come from, without an engine: given, local, or unknown and why."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.apis import TEMPLATED
from coordinator.canonical import Api, Canonical, parse
from coordinator.engines import Engine, ServedModel
from coordinator.tokens.engine_tokenize import OPEN_S, Breaker, question
from coordinator.tokens.loading import RELOAD_AFTER_S, SourceState
from coordinator.tokens.probes import probes
from coordinator.tokens.reuse import Reused
from coordinator.tokens.sources import LONG_BYTES, Tokens
from coordinator.tokens.tokenized import Reason, Tokenized, TokenState
from coordinator.tokens.tokenizer import Tokenizer
from lineside.hashing import pack
from lineside.ids import EngineId, GroupId, ModelName, NodeId
from tests.manual_clock import RushingClock

MODEL = str(Path(__file__).parents[1] / "simulate" / "model")
LOADED = Tokenizer.load(MODEL)
EXACT, UNKNOWN = TokenState.EXACT, TokenState.UNKNOWN


def engine(tokenizer: str | None = MODEL, name: str = "a") -> Engine:
    return Engine(
        id=EngineId(f"{name}:1"),
        base_url="http://127.0.0.1:1",
        endpoint=f"{name}:1",
        group=GroupId("g"),
        models=(ServedModel(ModelName("m")), ServedModel(ModelName("adapter"), lora="adapter")),
        node=NodeId("n"),
        tokenizer=tokenizer,
    )


def completion(prompt: Any, **fields: Any) -> Canonical:
    body = json.dumps({"model": "m", "prompt": prompt, **fields}).encode()
    canonical = parse(Api.OPENAI_COMPLETIONS, {}, body)
    assert isinstance(canonical, Canonical), canonical
    return canonical


def chat(content: Any, **fields: Any) -> Canonical:
    message = {"role": "user", "content": content}
    body = json.dumps({"model": "m", "messages": [message], **fields}).encode()
    canonical = parse(Api.OPENAI_CHAT, {}, body)
    assert isinstance(canonical, Canonical), canonical
    return canonical


@pytest.fixture
def clock() -> RushingClock:
    return RushingClock()


@pytest.fixture
async def tokens(clock: RushingClock) -> AsyncIterator[Tokens]:
    async with aiohttp.ClientSession() as http:
        tokens = Tokens(clock, http, budget_s=5.0)
        yield tokens
        tokens.close()


async def test_token_ids_that_are_given_need_no_tokenizer(tokens: Tokens) -> None:
    assert await tokens.of(completion([[1, 2, 3], [4]]), []) == Tokenized(
        EXACT, "given", pack([1, 2, 3]), 3
    )


async def test_a_model_with_a_directory_is_tokenized_locally(tokens: Tokens) -> None:
    await tokens.load(MODEL)
    assert await tokens.of(completion("The import statement"), [engine()]) == Tokenized(
        EXACT, "unverified", pack([343, 1148, 469]), 3
    )
    assert tokens.sources() == [
        SourceState(MODEL, "ready", encoder="fastokens", content_format="parts")
    ]


async def test_what_earlier_requests_spared_is_counted(tokens: Tokens) -> None:
    assert tokens.reused() == Reused()
    await tokens.load(MODEL)
    for _ in range(2):
        tokenized = await tokens.of(chat("Where is the signal box? " * 900), [engine()])
    assert tokenized.count is not None
    found = tokens.reused()
    assert (found.reused_tokens, found.encoded_tokens) == (tokenized.count, tokenized.count)
    assert found.kept_bytes > 0


async def test_a_large_text_is_tokenized_in_the_pool(tokens: Tokens) -> None:
    await tokens.load(MODEL)
    large = chat("list " * 20_000)
    tokenized = await tokens.of(large, [engine(None), engine()])
    expected = LOADED.tokens(large)
    assert tokenized == Tokenized(EXACT, "unverified", expected, len(expected) // 4)


@pytest.mark.parametrize(
    ("content", "aside"),
    [
        pytest.param("list " * 12_000, False, id="of words"),
        pytest.param("list " * 6_000 + "x" * 1_100 + " list" * 5_000, True, id="with a long word"),
        pytest.param("x" * 40_000, True, id="of one word"),
        pytest.param("x" * 30_000, False, id="small, of one word"),
        pytest.param("list " * 14_000, True, id="large, of words"),
    ],
)
async def test_what_takes_a_thread_is_what_may_be_slow(
    tokens: Tokens, content: str, aside: bool
) -> None:
    await tokens.load(MODEL)
    asked = asyncio.create_task(tokens.of(chat(content), [engine()]))
    await asyncio.sleep(0)
    assert asked.done() is not aside
    assert (await asked).packed == LOADED.tokens(chat(content))


async def test_one_very_long_text_at_a_time_leaves_a_thread_for_the_rest(tokens: Tokens) -> None:
    await tokens.load(MODEL)
    long, large = chat(" " * LONG_BYTES), chat("list " * 20_000)
    engines = [engine()]
    asked = (tokens.of(each, engines) for each in (long, long, large))
    first, second, third = await asyncio.gather(*asked)
    assert (first.state, third.state) == (EXACT, EXACT)
    assert second == Tokenized(UNKNOWN, "busy")
    assert (await tokens.of(long, engines)).state is EXACT


async def test_out_of_budget_a_request_has_no_tokens(clock: RushingClock) -> None:
    async with aiohttp.ClientSession() as http:
        hurried = Tokens(clock, http, budget_s=0.0)
        await hurried.load(MODEL)
        large = chat("list " * 20_000)
        assert await hurried.of(large, [engine()]) == Tokenized(UNKNOWN, "budget")
        assert await hurried.of(completion("x"), []) == Tokenized(UNKNOWN, "no_engine")
        hurried.close()


async def test_when_the_pool_is_full_a_request_does_not_wait(tokens: Tokens) -> None:
    await tokens.load(MODEL)
    large = [chat("list " * 20_000) for _ in range(40)]
    reasons = [t.reason for t in await asyncio.gather(*(tokens.of(c, [engine()]) for c in large))]
    assert reasons == ["unverified"] * 32 + ["busy"] * 8
    assert (await tokens.of(large[0], [engine()])).state is EXACT


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        pytest.param(completion(None, prompt_embeds="AA"), "unsupported", id="embeddings"),
        pytest.param(completion([1] * 9, truncate_prompt_tokens=8), "unsupported", id="cut"),
        pytest.param(completion("x" * 4_000_001), "too_large", id="a text beyond any context"),
    ],
)
async def test_what_cannot_be_tokenized_is_routed_by_load(
    tokens: Tokens, request_: Canonical, reason: str
) -> None:
    await tokens.load(MODEL)
    assert await tokens.of(request_, [engine()]) == Tokenized(UNKNOWN, reason)


async def test_a_prompt_that_is_not_cut_after_all_is_exact(tokens: Tokens) -> None:
    given = await tokens.of(completion([1] * 8, truncate_prompt_tokens=8), [])
    assert (given.state, given.count) == (EXACT, 8)


async def test_a_chat_with_media_is_known_up_to_it(tokens: Tokens) -> None:
    await tokens.load(MODEL)
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    tokenized = await tokens.of(chat([{"type": "text", "text": "look at"}, image]), [engine()])
    text = completion("<|im_start|>user\nlook at")
    assert tokenized == Tokenized(EXACT, "media", LOADED.tokens(text), None)


async def test_media_without_a_tokenizer_is_unknown(tokens: Tokens) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    assert await tokens.of(chat([image]), [engine(None)]) == Tokenized(UNKNOWN, "media")


async def test_a_directory_that_cannot_be_read_is_tried_again(
    tokens: Tokens, clock: RushingClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = str(tmp_path)
    with caplog.at_level(logging.WARNING):
        await tokens.load(directory)
    assert tokens.sources() == [SourceState(directory, "failed", "no tokenizer.json")]
    assert [r.message for r in caplog.records] == ["tokenizer not loaded"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(f"{MODEL}/{name}")
    clock.now += RELOAD_AFTER_S + 1
    await tokens.load(directory)
    assert tokens.sources() == [
        SourceState(
            directory, "ready", encoder="fastokens", no_reuse="no template renders a plain chat"
        )
    ]


def test_reasons_are_a_closed_list() -> None:
    """Metrics have a label for each; a new one needs a row in their table."""
    assert {reason.value for reason in Reason} == {
        *("given", "local", "unverified", "media"),
        *("no_tokenizer", "loading", "unloadable", "different", "unconfirmed"),
        *("client_template", "tool_choice", "template"),
        *("budget", "busy", "too_large", "unsupported", "continuation"),
        *("engine_error", "breaker_open", "no_engine"),
    }


def test_a_breaker_opens_after_failures_and_lets_one_through_later() -> None:
    breaker = Breaker()
    for _ in range(3):
        assert breaker.allows(0.0)
        breaker.fail(0.0)
    assert not breaker.allows(OPEN_S - 0.1)
    assert breaker.allows(OPEN_S)
    breaker.begin()
    assert not breaker.allows(OPEN_S), "one trial at a time"
    breaker.fail(OPEN_S)
    breaker.trying = False
    assert not breaker.allows(OPEN_S + 1), "a failed trial opens it again"
    breaker.begin()
    breaker.succeed()
    breaker.trying = False
    assert breaker.allows(2 * OPEN_S)


@pytest.mark.parametrize(
    ("request_", "asked"),
    [
        pytest.param(completion(["a", "b"]), {"model": "m", "prompt": "a"}, id="the first text"),
        pytest.param(
            completion("a", add_special_tokens=False),
            {"model": "m", "prompt": "a", "add_special_tokens": False},
            id="without start token",
        ),
        pytest.param(
            chat("a", max_tokens=5, tools=[], reasoning_effort="none", documents=[{"t": "x"}]),
            {
                "model": "m",
                "messages": [{"role": "user", "content": "a"}],
                "tools": [],
                "chat_template_kwargs": {
                    "enable_thinking": False,
                    "reasoning_effort": "none",
                    "documents": [{"t": "x"}],
                },
            },
            id="a chat, with what shapes its prompt",
        ),
    ],
)
def test_the_question_to_an_engine_holds_what_shapes_the_prompt(
    request_: Canonical, asked: dict[str, Any]
) -> None:
    assert json.loads(question(request_, engine())) == asked


def test_probes_are_requests_to_the_base_model() -> None:
    assert {probe.model for api in TEMPLATED for probe in probes(api, engine())} == {"m"}
    assert [len(probes(api, engine())) for api in TEMPLATED] == [9, 5]
