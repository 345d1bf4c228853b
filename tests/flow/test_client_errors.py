"""Official clients when something is wrong: each has its own exception for it, and says why."""

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.actors import Failure
from tests.fronts import MODELS, Stage, chat, message, said, stage
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

LIMIT_BYTES = 100_000
SETTINGS = {"body_limit_bytes": LIMIT_BYTES}
CLIENTS = [
    pytest.param(openai, chat, id="openai"),
    pytest.param(anthropic, message, id="anthropic"),
]

TOO_LARGE: Any = [{"role": "user", "content": "x" * LIMIT_BYTES}]
REFUSALS = [
    pytest.param({"model": "none"}, "NotFoundError", "the model `none` does not exist", id="model"),
    pytest.param({"messages": "hello"}, "BadRequestError", "messages", id="no list"),
    pytest.param({"messages": TOO_LARGE}, 413, "larger than 100000 bytes", id="too large"),
    pytest.param(
        {"extra_headers": {"x-project": "secret"}},
        "PermissionDeniedError",
        "this project may not be asked about",
        id="policy",
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("asked", "error", "words"), REFUSALS)
async def test_a_refusal_is_each_clients_own_exception(
    staged: Stage, asked: dict[str, Any], error: str | int, words: str, stream: bool
) -> None:
    status = error if isinstance(error, int) else None
    for module, ask in ((openai, chat), (anthropic, message)):
        name = error if isinstance(error, str) else "APIStatusError"
        with pytest.raises(getattr(module, name)) as raised:
            await ask(staged, stream=stream, **asked)
        assert words in said(raised.value)
        assert status is None or raised.value.status_code == status
    assert staged.engine.asked == []
    await until(staged.front.is_quiet)


FAILURES = [
    pytest.param(400, "BadRequestError", id="400"),
    pytest.param(404, "NotFoundError", id="404"),
    pytest.param(422, "UnprocessableEntityError", id="422"),
]
PAUSES = [
    pytest.param(429, "RateLimitError", id="429"),
    pytest.param(500, "InternalServerError", id="500"),
    pytest.param(503, "InternalServerError", id="503"),
]
"""After which a provider is left alone for a while, so that each needs a coordinator of its own."""


@pytest.mark.parametrize(("client", "ask"), CLIENTS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("status", "name"), FAILURES)
async def test_a_backends_error_is_each_clients_own_exception(
    staged: Stage, client: Any, ask: Any, model: str, status: int, name: str
) -> None:
    for stream in (False, True):
        await fails(staged, getattr(client, name), ask, model, status, stream)


@pytest.mark.parametrize(("client", "ask"), CLIENTS)
@pytest.mark.parametrize(("status", "name"), PAUSES)
async def test_a_backend_that_has_to_be_left_alone_is_said_to_be(
    tmp_path: Path, door: str, client: Any, ask: Any, status: int, name: str
) -> None:
    async with stage(tmp_path, door) as staged:
        for at, model in enumerate(MODELS):
            await fails(staged, getattr(client, name), ask, model, status, stream=bool(at % 2))


async def fails(staged: Stage, error: Any, ask: Any, model: str, status: int, stream: bool) -> None:
    """Let a backend fail; the client says so in its own way, and nobody is asked twice."""
    actor = staged.actor(model)
    actor.rest()
    tries = 4 if staged.front.tries_503 and (model, status) == ("local", 503) else 1
    actor.failures[:] = [Failure(status, "nobody is here", retry_after="7")] * tries
    with pytest.raises(error) as raised:
        await ask(staged, model=model, stream=stream)
    assert said(raised.value)
    assert raised.value.status_code == status
    assert raised.value.response.headers["retry-after"] == "7"
    assert len(actor.asked) == tries
    await until(staged.front.is_quiet)


async def test_an_overloaded_anthropic_is_one_in_each_clients_words(
    tmp_path: Path, door: str
) -> None:
    async with stage(tmp_path, door) as staged:
        staged.actor("claude").failures[:] = [Failure(529, "Overloaded")]
        with pytest.raises(openai.InternalServerError) as chats:
            await chat(staged, model="claude")
        assert chats.value.status_code == 503
        assert said(chats.value) == "the provider is overloaded; try again shortly"
    async with stage(tmp_path, door) as staged:
        staged.actor("claude").failures[:] = [Failure(529, "Overloaded")]
        with pytest.raises(anthropic.OverloadedError) as messages:
            await message(staged, model="claude")
        assert messages.value.status_code == 529
