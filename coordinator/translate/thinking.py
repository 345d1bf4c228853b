"""When Anthropic's models can be told to think, and what then must not be said. Pure."""

from coordinator.translate.ask import Ask, Json, Redacted, Result, Thinking, Use

MIN_BUDGET = 1024
"""Tokens; the API takes no less, and wants `max_tokens` above it."""


def thinking_of(ask: Ask) -> Json | None:
    """Return how to think; `None`: as the model does by itself. Raises `Untranslatable`."""
    thinking = ask.thinking
    if thinking is None or not is_on(thinking):
        return thinking
    budget = thinking.get("budget_tokens", MIN_BUDGET)
    if not isinstance(budget, int) or budget < MIN_BUDGET:
        raise ask.refuse("thinking")
    return thinking if _may_think(ask) else None


def is_on(thinking: Json | None) -> bool:
    """Whether it says to think. Then the API takes no temperature and no `top_k`."""
    return thinking is not None and thinking.get("type") != "disabled"


def _may_think(ask: Ask) -> bool:
    """Whether thinking can be on: not in the middle of calls whose thoughts are not at hand."""
    for turn in reversed(ask.turns):
        if turn.role == "user" and not any(isinstance(block, Result) for block in turn.blocks):
            return True
        if turn.role == "assistant" and any(isinstance(block, Use) for block in turn.blocks):
            first = turn.blocks[0]
            signed = isinstance(first, Thinking) and bool(first.signature)
            return signed or isinstance(first, Redacted)
    return True
