"""Why a model stopped, in each API's words and back. Pure tables."""

from coordinator.translate.events import Stop

FROM_CHAT = {
    "stop": Stop.END,
    "length": Stop.LENGTH,
    "tool_calls": Stop.TOOLS,
    "function_call": Stop.TOOLS,
    "content_filter": Stop.REFUSED,
}

TO_CHAT = {
    Stop.END: "stop",
    Stop.SEQUENCE: "stop",
    Stop.LENGTH: "length",
    Stop.CONTEXT: "length",
    Stop.TOOLS: "tool_calls",
    Stop.REFUSED: "content_filter",
    Stop.PAUSED: "stop",
}

TO_ANTHROPIC = {
    Stop.END: "end_turn",
    Stop.SEQUENCE: "stop_sequence",
    Stop.LENGTH: "max_tokens",
    Stop.CONTEXT: "model_context_window_exceeded",
    Stop.TOOLS: "tool_use",
    Stop.REFUSED: "refusal",
    Stop.PAUSED: "pause_turn",
}

FROM_ANTHROPIC = {word: stop for stop, word in TO_ANTHROPIC.items()}

FROM_CONVERSE = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.SEQUENCE,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.CONTEXT,
    "tool_use": Stop.TOOLS,
    "guardrail_intervened": Stop.REFUSED,
    "content_filtered": Stop.REFUSED,
}
"""What is not here, as `malformed_tool_use`, counts as an end: what was said before it stands."""

INCOMPLETE = {
    Stop.LENGTH: "max_output_tokens",
    Stop.CONTEXT: "max_output_tokens",
    Stop.REFUSED: "content_filter",
}
"""Responses that ended so are incomplete, for this reason; all others are completed."""
