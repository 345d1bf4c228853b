"""A large body is read as a small one is, and while it is the event loop runs."""

import asyncio
import json

import pytest

from coordinator.bodies import CONVERTED_BYTES, LARGE_BYTES
from coordinator.canonical import Api, parse
from coordinator.doors.parsing import parsed
from coordinator.heavy import Heavy

TURNS = [{"role": "user", "content": "word " * 500}] * (CONVERTED_BYTES // 2000)
LARGE = json.dumps({"model": "m", "max_tokens": 1, "messages": TURNS}).encode()
HUGE = json.dumps({"model": "m", "messages": TURNS * (LARGE_BYTES // len(LARGE) + 1)}).encode()
SMALL = json.dumps({"model": "m", "max_tokens": 1, "messages": TURNS[:1]}).encode()


@pytest.mark.parametrize(
    ("api", "body", "aside"),
    [
        pytest.param(Api.ANTHROPIC_MESSAGES, LARGE, True, id="a large message"),
        pytest.param(Api.ANTHROPIC_MESSAGES, SMALL, False, id="a small message"),
        pytest.param(Api.OPENAI_CHAT, LARGE, False, id="a chat, which has its form already"),
        pytest.param(Api.OPENAI_CHAT, HUGE, True, id="a chat that is long to read all the same"),
    ],
)
async def test_what_takes_long_to_read_is_read_aside(api: Api, body: bytes, aside: bool) -> None:
    reading = asyncio.create_task(parsed(api, {}, body, Heavy()))
    await asyncio.sleep(0)
    assert reading.done() != aside
    assert await reading == parse(api, {}, body)
