"""Tokens from an engine's `/tokenize` on a real socket, and what happens when it fails."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from coordinator.canonical import Api, Canonical, parse
from coordinator.engines import Engine, ServedModel
from coordinator.tokens.engine_tokenize import OPEN_S, OPENS_AFTER
from coordinator.tokens.sources import Check, Tokens
from coordinator.tokens.tokenized import Tokenized, TokenState
from coordinator.tokens.tokenizer import Tokenizer
from lineside.hashing import pack
from lineside.ids import EngineId, GroupId, ModelName, NodeId
from tests.manual_clock import RushingClock

pytestmark = pytest.mark.flow

MODEL = str(Path(__file__).parents[2] / "simulate" / "model")
LOADED = Tokenizer.load(MODEL)
Answer = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


class FakeEngine:
    """Serves `/tokenize` as `answer` says, and counts the questions."""

    def __init__(self) -> None:
        self.answer: Answer = truly
        self.asked = 0
        self.renders = False
        self.rendered: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return await self.answer(await request.json())

    async def render(self, request: web.Request) -> web.StreamResponse:
        """Answer as `/v1/…/render` does, or as an engine without it."""
        if not self.renders:
            return web.json_response({"error": {}}, status=403)
        body = await request.json()
        self.rendered.append(body)
        answer = {"token_ids": ids_of(body), "model": body["model"]}
        return web.json_response(answer if "messages" in body else [answer])

    def engine(self, tokenizer: str | None = None) -> Engine:
        endpoint = self.url.removeprefix("http://")
        return Engine(
            id=EngineId(endpoint),
            base_url=self.url,
            endpoint=endpoint,
            group=GroupId("g"),
            models=(ServedModel(ModelName("m")),),
            node=NodeId("n"),
            tokenizer=tokenizer,
        )


def ids_of(body: dict[str, Any]) -> list[int]:
    api = Api.OPENAI_CHAT if "messages" in body else Api.OPENAI_COMPLETIONS
    packed = LOADED.tokens(request(api, body))
    return [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)]


async def truly(body: dict[str, Any]) -> web.Response:
    ids = ids_of(body)
    return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 1024})


async def otherwise(body: dict[str, Any]) -> web.Response:
    return web.json_response({"tokens": [1, 2, 3], "count": 3})


async def otherwise_for_text(body: dict[str, Any]) -> web.Response:
    return await (truly(body) if "messages" in body else otherwise(body))


async def never(body: dict[str, Any]) -> web.Response:
    await asyncio.sleep(10)
    return web.Response()


def with_status(status: int) -> Answer:
    async def answer(body: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {}}, status=status, headers={"location": "/tokenize"})

    return answer


def with_text(text: str) -> Answer:
    async def answer(body: dict[str, Any]) -> web.Response:
        return web.Response(text=text)

    return answer


def request(api: Api, body: dict[str, Any]) -> Canonical:
    canonical = parse(api, {}, json.dumps({"model": "m", **body}).encode())
    assert isinstance(canonical, Canonical), canonical
    return canonical


def chat(content: Any = "hello", **fields: Any) -> Canonical:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return request(Api.OPENAI_CHAT, body)


HELLO = pack([1, 371, 84, 201, 264, 78, 324, 2, 201, 1, 67, 495, 281, 1769, 201])
STATEMENT = pack([343, 1148, 469])
TEXT = request(Api.OPENAI_COMPLETIONS, {"prompt": "The import statement"})


def unknown(reason: str) -> Tokenized:
    return Tokenized(TokenState.UNKNOWN, reason)


def by_engine(reason: str, packed: bytes = HELLO) -> Tokenized:
    return Tokenized(TokenState.ENGINE, reason, packed, len(packed) // 4)


@asynccontextmanager
async def serving() -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    app = web.Application()
    app.router.add_post("/tokenize", fake.handle)
    app.router.add_post("/v1/chat/completions/render", fake.render)
    app.router.add_post("/v1/completions/render", fake.render)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    fake.url = f"http://127.0.0.1:{port}"
    try:
        yield fake
    finally:
        await runner.cleanup()


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with serving() as fake:
        yield fake


@pytest.fixture
async def other() -> AsyncIterator[FakeEngine]:
    async with serving() as fake:
        yield fake


@pytest.fixture
def clock() -> RushingClock:
    return RushingClock()


@pytest.fixture
async def tokens(clock: RushingClock) -> AsyncIterator[Tokens]:
    async with tokens_with(clock, budget_s=5.0) as tokens:
        yield tokens


@asynccontextmanager
async def tokens_with(clock: RushingClock, budget_s: float) -> AsyncIterator[Tokens]:
    async with aiohttp.ClientSession() as http:
        tokens = Tokens(clock, http, budget_s)
        yield tokens
        tokens.close()


async def test_without_a_tokenizer_the_engine_is_asked(tokens: Tokens, fake: FakeEngine) -> None:
    engines = [fake.engine()]
    assert await tokens.of(chat(), engines) == by_engine("no_tokenizer")
    assert await tokens.of(TEXT, engines) == by_engine("no_tokenizer", STATEMENT)


async def test_while_the_tokenizer_loads_the_engine_is_asked(
    tokens: Tokens, fake: FakeEngine
) -> None:
    engines = [fake.engine(MODEL)]
    assert await tokens.of(chat(), engines) == by_engine("loading")
    await tokens.load(MODEL)
    assert await tokens.of(chat(), engines) == Tokenized(TokenState.EXACT, "unverified", HELLO, 15)
    assert fake.asked == 1


async def test_a_clients_template_is_for_the_engine_to_judge(
    tokens: Tokens, fake: FakeEngine
) -> None:
    await tokens.load(MODEL)
    fake.answer = otherwise
    templated = await tokens.of(chat(chat_template="x"), [fake.engine(MODEL)])
    assert templated == by_engine("client_template", pack([1, 2, 3]))


async def test_a_slow_engine_costs_the_budget_and_then_nothing(
    clock: RushingClock, fake: FakeEngine
) -> None:
    fake.answer = never
    engines = [fake.engine()]
    async with tokens_with(clock, budget_s=0.05) as tokens:
        began = time.monotonic()
        for _ in range(OPENS_AFTER):
            assert await tokens.of(chat(), engines) == unknown("budget")
        assert time.monotonic() - began < 2.0
        assert await tokens.of(chat(), engines) == unknown("breaker_open")
        assert fake.asked == OPENS_AFTER
        assert tokens.open_breakers() == [fake.engine().id]


async def test_an_engine_that_recovers_is_asked_again(
    tokens: Tokens, clock: RushingClock, fake: FakeEngine
) -> None:
    fake.answer = with_status(500)
    for _ in range(OPENS_AFTER):
        assert await tokens.of(chat(), [fake.engine()]) == unknown("engine_error")
    fake.answer = truly
    assert await tokens.of(chat(), [fake.engine()]) == unknown("breaker_open")
    clock.now += OPEN_S
    assert await tokens.of(chat(), [fake.engine()]) == by_engine("no_tokenizer")
    assert tokens.open_breakers() == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(with_status(404), id="no such route"),
        pytest.param(with_status(307), id="a redirect"),
        pytest.param(with_text("<html>"), id="not JSON"),
        pytest.param(with_text('{"tokens": ["a"]}'), id="not token ids"),
        pytest.param(with_text('{"tokens": [4294967296]}'), id="an id out of range"),
        pytest.param(with_text('{"count": 1}'), id="no tokens"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(
    tokens: Tokens, fake: FakeEngine, answer: Answer
) -> None:
    fake.answer = answer
    assert await tokens.of(chat(), [fake.engine()]) == unknown("engine_error")


async def test_an_answer_without_end_is_an_error(
    tokens: Tokens, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.tokens.engine_tokenize.MAX_ANSWER_BYTES", 50)
    assert await tokens.of(chat(), [fake.engine()]) == unknown("engine_error")


async def test_a_request_that_the_engine_refuses_is_not_the_engines_failure(
    tokens: Tokens, fake: FakeEngine
) -> None:
    fake.answer = with_status(400)
    for _ in range(OPENS_AFTER + 1):
        assert await tokens.of(chat(), [fake.engine()]) == unknown("unsupported")
    assert tokens.open_breakers() == []


async def test_when_one_engine_fails_another_is_asked(
    tokens: Tokens, fake: FakeEngine, other: FakeEngine
) -> None:
    fake.answer = with_status(503)
    engines = [fake.engine(), other.engine()]
    for _ in range(2 * OPENS_AFTER):
        assert await tokens.of(chat(), engines) == by_engine("no_tokenizer")
    assert fake.asked <= OPENS_AFTER


async def test_healthy_engines_take_turns(
    tokens: Tokens, fake: FakeEngine, other: FakeEngine
) -> None:
    for _ in range(6):
        await tokens.of(chat(), [fake.engine(), other.engine()])
    assert (fake.asked, other.asked) == (3, 3)


async def test_an_engine_that_is_not_there_is_an_error(tokens: Tokens) -> None:
    async with serving() as gone:
        pass
    assert await tokens.of(chat(), [gone.engine()]) == unknown("engine_error")


async def test_a_tokenizer_that_agrees_with_the_engine_is_trusted(
    tokens: Tokens, fake: FakeEngine
) -> None:
    engine = fake.engine(MODEL)
    assert await tokens.verify(engine) is Check.SAME
    assert fake.asked == 14
    assert await tokens.of(chat(), [engine]) == Tokenized(TokenState.EXACT, "local", HELLO, 15)
    assert fake.asked == 14


async def test_a_tokenizer_that_differs_from_the_engine_is_not_used(
    tokens: Tokens, fake: FakeEngine
) -> None:
    engine = fake.engine(MODEL)
    fake.answer = otherwise
    assert await tokens.verify(engine) is Check.DIFFERENT
    assert await tokens.of(chat(), [engine]) == by_engine("different", pack([1, 2, 3]))
    fake.answer = truly
    assert await tokens.verify(engine) is Check.SAME
    assert (await tokens.of(chat(), [engine])).reason == "local"


async def test_a_difference_in_texts_alone_leaves_chats_local(
    tokens: Tokens, fake: FakeEngine
) -> None:
    engine = fake.engine(MODEL)
    fake.answer = otherwise_for_text
    assert await tokens.verify(engine) is Check.DIFFERENT
    assert tokens.checks() == {
        engine.id: {Api.OPENAI_CHAT: Check.SAME, Api.OPENAI_COMPLETIONS: Check.DIFFERENT}
    }
    assert (await tokens.of(chat(), [engine])).reason == "local"
    assert (await tokens.of(TEXT, [engine])).reason == "different"
    tokens.forget(engine.id)
    assert tokens.checks() == {}


async def test_an_engine_that_cannot_tokenize_leaves_the_tokenizer_unverified(
    tokens: Tokens, fake: FakeEngine
) -> None:
    engine = fake.engine(MODEL)
    fake.answer = with_status(404)
    assert await tokens.verify(engine) is Check.UNVERIFIED
    assert (await tokens.of(chat(), [engine])).reason == "unverified"


async def test_an_engine_without_a_directory_has_nothing_to_verify(
    tokens: Tokens, fake: FakeEngine, tmp_path: Path
) -> None:
    assert await tokens.verify(fake.engine()) is Check.NO_TOKENIZER
    assert await tokens.verify(fake.engine(str(tmp_path))) is Check.NO_TOKENIZER
    assert (await tokens.of(chat(), [fake.engine(str(tmp_path))])) == by_engine("unloadable")


TOOL = {"type": "function", "function": {"name": "f"}}


async def test_an_engine_that_renders_is_asked_there(tokens: Tokens, fake: FakeEngine) -> None:
    fake.renders = True
    engine = fake.engine()
    assert await tokens.verify(engine) is Check.NO_TOKENIZER
    probed = len(fake.rendered)
    asked = chat(priority=7, stream=True)
    assert await tokens.of(asked, [engine]) == by_engine("no_tokenizer")
    assert await tokens.of(TEXT, [engine]) == by_engine("no_tokenizer", STATEMENT)
    assert fake.asked == 0
    sent = fake.rendered[probed]
    assert (sent["stream"], sent.get("priority")) == (True, None), "the request as it will be sent"


async def test_an_engine_that_renders_no_more_is_asked_as_the_others(
    tokens: Tokens, fake: FakeEngine
) -> None:
    fake.renders = True
    engine = fake.engine()
    await tokens.verify(engine)
    fake.renders = False
    assert await tokens.of(chat(), [engine]) == by_engine("no_tokenizer")
    assert fake.asked == 1
    assert tokens.open_breakers() == []


async def test_tools_that_must_not_be_chosen_are_for_the_render_endpoint_to_judge(
    tokens: Tokens, fake: FakeEngine
) -> None:
    """A flag of the engine hides them from the prompt; `/tokenize` cannot be asked about it."""
    engine = fake.engine(MODEL)
    await tokens.verify(engine)
    hidden = chat(tools=[TOOL], tool_choice="none")
    asked = fake.asked
    assert await tokens.of(hidden, [engine]) == unknown("tool_choice")
    assert fake.asked == asked
    fake.renders = True
    await tokens.verify(engine)
    assert await tokens.of(hidden, [engine]) == by_engine("tool_choice")
    shown = await tokens.of(chat(tools=[TOOL], tool_choice="auto"), [engine])
    assert (shown.state, shown.reason) == (TokenState.EXACT, "local")


async def test_a_doubtful_tokenizer_counts_once_an_engine_has_confirmed_it(
    tokens: Tokens, fake: FakeEngine, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):  # and no word about the class
        (tmp_path / name).symlink_to(f"{MODEL}/{name}")
    engine = fake.engine(str(tmp_path))
    await tokens.load(str(tmp_path))
    assert await tokens.of(chat(), [engine]) == by_engine("unconfirmed")
    assert await tokens.verify(engine) is Check.SAME
    assert await tokens.of(chat(), [engine]) == Tokenized(TokenState.EXACT, "local", HELLO, 15)


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"tekken.json": "{}"}, id="no tokenizer.json"),
        pytest.param({"tekken.json": "{}", "tokenizer.json": None}, id="and tokenizer.json"),
        pytest.param(
            {"tokenizer.json": None, "tokenizer_config.json": None}, id="without a chat template"
        ),
    ],
)
async def test_a_tokenizer_in_mistrals_way_is_left_to_the_engine(
    tokens: Tokens, fake: FakeEngine, tmp_path: Path, files: dict[str, str | None]
) -> None:
    for name, content in files.items():
        path = tmp_path / name
        path.symlink_to(f"{MODEL}/{name}") if content is None else path.write_text(content)
    await tokens.load(str(tmp_path))
    answered = await tokens.of(chat(), [fake.engine(str(tmp_path))])
    assert (answered.state, answered.packed) == (TokenState.ENGINE, HELLO)


async def test_an_engine_that_could_not_be_compared_is_asked_again(
    fake: FakeEngine,
) -> None:
    clock = WaitingClock()
    engine = fake.engine(MODEL)
    fake.answer = with_status(404)
    async with tokens_with(clock, budget_s=5.0) as tokens, asyncio.TaskGroup() as group:
        verifying = group.create_task(tokens.keep_verified(engine))
        await clock.asleep.wait()
        assert tokens.checks()[engine.id][Api.OPENAI_CHAT] is Check.UNVERIFIED
        fake.answer = truly
        clock.now += OPEN_S
        clock.wake.set()
        await verifying
        assert tokens.checks()[engine.id][Api.OPENAI_CHAT] is Check.SAME


async def test_an_engine_that_left_is_not_asked_again(fake: FakeEngine) -> None:
    clock = WaitingClock()
    fake.answer = with_status(404)
    async with tokens_with(clock, budget_s=5.0) as tokens, asyncio.TaskGroup() as group:
        verifying = group.create_task(tokens.keep_verified(fake.engine(MODEL)))
        await clock.asleep.wait()
        tokens.forget(fake.engine().id)
        asked = fake.asked
        clock.wake.set()
        await verifying
        assert fake.asked == asked


class WaitingClock(RushingClock):
    """Sleeps until it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep, self.wake = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        await self.wake.wait()
