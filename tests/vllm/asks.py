"""Requests that several files send to real engines, and what a right prediction of one is."""

from typing import Any

from tests.captures import ids
from tests.vllm.mix import CHAT, COMPLETIONS
from tests.vllm.model import BLOCK, NAME
from tests.vllm.product import STRIDE_TOKENS, Answer, Product

BOUND = STRIDE_TOKENS + BLOCK
"""Reported minus predicted lies in 0 to below this: what the stride hides, and a block."""

ANSWER: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
SYSTEM = {"role": "system", "content": "You answer questions about the Python language. " * 12}
MESSAGES = [SYSTEM, {"role": "user", "content": "What is a list?"}]

Request = tuple[str, dict[str, Any]]
"""A path and a body."""


def prompt(seed: int, count: int = 200) -> list[int]:
    """Return token ids that no other seed gives."""
    return list(ids(seed, count))


def chat(**more: Any) -> Request:
    """Return a chat of some 150 tokens."""
    return CHAT, {"model": NAME, "messages": MESSAGES, **ANSWER, **more}


def complete(prompt: Any, **more: Any) -> Request:
    """Return a completion."""
    return COMPLETIONS, {"model": NAME, "prompt": prompt, **ANSWER, **more}


async def known(front: Product, request: Request) -> Answer:
    """Send a request, and wait until the index knows what it left in a cache."""
    answer = await front.ask(*request)
    assert answer.well, answer
    await front.until_known(*request, answer)
    return answer
