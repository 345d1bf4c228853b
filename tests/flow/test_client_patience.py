"""Official clients that try again, lose patience or leave: what backends get and hear of it."""

import asyncio
import time

import anthropic
import httpx2
import openai
import pytest

from tests.actors import Failure, Line
from tests.fronts import ASK, MODELS, Stage, breaks, chat, message
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

PATIENCE_S = 0.6
"""Long enough for a request to reach its backend on a busy machine."""

ABORT_S = 1.0
"""In which a backend hears that its client has gone."""


@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_a_client_that_tries_again_causes_one_call_each_time(
    staged: Stage, client: str
) -> None:
    actor, front = staged.engine, staged.front
    actor.failures[:] = [Failure(429, retry_after="1")]
    before = len(await front.records())
    began = time.monotonic()
    if client == "openai":
        chats = front.openai.with_options(max_retries=1).chat.completions
        await chats.create(model="local", messages=ASK, max_tokens=5)
    else:
        messages = front.anthropic.with_options(max_retries=1).messages
        await messages.create(model="local", messages=ASK, max_tokens=5)
    assert len(actor.asked) == 2
    assert time.monotonic() - began >= 1.0  # it waited as long as it was told to
    ends = [record["outcome"]["status"] for record in await front.records()]
    assert (len(ends) - before, ends[:2]) == (2, [200, 429])


async def test_a_retry_that_is_in_vain_fails_with_the_last_error(staged: Stage) -> None:
    staged.engine.failures[:] = [Failure(500)] * 9
    chats = staged.front.openai.with_options(max_retries=1).chat.completions
    with pytest.raises(openai.InternalServerError):
        await chats.create(model="local", messages=ASK, max_tokens=5)
    assert len(staged.engine.asked) == 2


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_a_clients_own_timeout_ends_the_backends_work(
    staged: Stage, client: str, model: str
) -> None:
    actor, front = staged.actor(model), staged.front
    actor.holds_after = 0
    if client == "openai":
        with pytest.raises(openai.APITimeoutError):
            chats = front.openai.with_options(timeout=PATIENCE_S).chat.completions
            await chats.create(model=model, messages=ASK, max_tokens=5)
    else:
        with pytest.raises(anthropic.APITimeoutError):
            messages = front.anthropic.with_options(timeout=PATIENCE_S).messages
            await messages.create(model=model, messages=ASK, max_tokens=5)
    await until_broken_off(staged, model)


async def until_broken_off(staged: Stage, model: str) -> None:
    """Wait until a backend has heard, and nothing is accounted any more."""

    async def so() -> bool:
        return staged.actor(model).broken_off == 1 and await staged.front.is_quiet()

    await until(so, ABORT_S)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_a_client_that_leaves_in_mid_stream_is_noticed_by_the_backend(
    staged: Stage, client: str, model: str
) -> None:
    actor = staged.actor(model)
    actor.line, actor.holds_after = Line(tuple("abcdefghij")), 7
    ask = chat if client == "openai" else message
    stream = await ask(staged, model=model, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until_broken_off(staged, model)
    outcome = (await staged.front.records())[0]["outcome"]
    assert outcome["end"] == "aborted"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_before_its_answer_is_noticed_by_the_backend(
    staged: Stage, model: str, stream: bool
) -> None:
    actor = staged.actor(model)
    actor.holds_after = 0
    asking = asyncio.create_task(chat(staged, model=model, stream=stream))

    async def asked() -> bool:
        return bool(actor.asked)

    await until(asked)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until_broken_off(staged, model)


async def test_a_stream_that_breaks_off_is_no_answer(staged: Stage, door: str) -> None:
    for model in MODELS:
        actor = staged.actor(model)
        actor.line, actor.breaks_after = Line(tuple("abcdefghij")), 5
    if door == "http":
        await breaks(staged, "broke off", openai.APIError, anthropic.APIStatusError)
    else:  # Envoy has no words of its own in a stream: it hangs up
        await breaks(staged, "onnection", openai.APIConnectionError, httpx2.RemoteProtocolError)
