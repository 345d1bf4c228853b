"""Official clients whose backend is too slow for our own door. Envoy has its own limits."""

import anthropic
import openai
import pytest

from coordinator.config import Timeouts
from tests.actors import Line
from tests.fronts import MODELS, Stage, breaks, chat, message, said
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

SETTINGS = {"timeouts": Timeouts(connect_s=0.3, first_token_s=0.3, idle_s=0.3, total_s=0.5)}


@pytest.fixture(scope="module")
def door() -> str:
    return "http"


@pytest.mark.parametrize("model", MODELS)
async def test_a_stream_that_does_not_begin_is_an_error_with_a_status(
    staged: Stage, model: str
) -> None:
    staged.actor(model).holds_after = 1
    with pytest.raises(openai.InternalServerError) as chats:
        await chat(staged, model=model, stream=True)
    with pytest.raises(anthropic.InternalServerError) as messages:
        await message(staged, model=model, stream=True)
    for error in (chats.value, messages.value):
        assert (error.status_code, "longer than 0.3 s" in said(error)) == (504, True)
    await until(staged.front.is_quiet)


async def test_a_stream_that_stalls_is_no_answer(staged: Stage) -> None:
    for model in MODELS:
        actor = staged.actor(model)
        actor.line, actor.holds_after = Line(tuple("abcdefghij")), 5
    await breaks(staged, "longer than 0.3 s", openai.APIError, anthropic.APIStatusError)
