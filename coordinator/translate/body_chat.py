"""An `Ask` as a body for OpenAI's chat completions. Pure.

The API has no place for earlier thoughts, which stay behind, and none for failed results, which say
so in their text. To ask a stream for its usage is the caller's: not all backends can tell.
"""

import hashlib

import msgspec

from coordinator.translate.ask import (
    Ask,
    Block,
    Choice,
    Document,
    Image,
    Json,
    Result,
    Shown,
    Text,
    Tool,
    Turn,
    Use,
)
from coordinator.translate.untranslatable import cannot_carry

MAX_STOPS = 4
"""Sequences that the API takes."""

MAX_USER_CHARS = 64
"""A longer name of a user goes as its digest."""


def chat_body(ask: Ask) -> Json:
    """Return the body. Raises `Untranslatable`."""
    if ask.turns and ask.turns[-1].role == "assistant":
        at = ask.turns[-1].at
        raise cannot_carry(at, "end with what the user says: the model would not go on with this")
    if ask.top_k is not None:
        raise ask.refuse("top_k")
    if len(ask.stops) > MAX_STOPS:
        raise ask.refuse("stops")
    messages = [] if not ask.system else [_system([*ask.system])]
    for turn in ask.turns:
        messages += _messages(turn)
    body: Json = {"model": ask.model, "messages": messages}
    given = {
        "max_completion_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "stop": ask.stops or None,
        "user": _user(ask.user),
        "reasoning_effort": ask.effort,
    }
    body |= {name: value for name, value in given.items() if value is not None}
    if ask.schema is not None:
        named = {"name": "answer", "schema": ask.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if ask.tools:
        body |= _tools(ask)
    return body | ({"stream": True} if ask.stream else {})


def _system(blocks: list[Block]) -> Json:
    texts = [block.text for block in blocks if isinstance(block, Text)]
    return {"role": "system", "content": "".join(texts)}


def _messages(turn: Turn) -> list[Json]:
    """Return a turn's messages. Results come right after their calls, images in them thereafter."""
    if turn.role == "system":
        return [_system(turn.blocks)]
    if turn.role == "assistant":
        message = _assistant(turn)
        return [message] if len(message) > 1 else []
    results = [block for block in turn.blocks if isinstance(block, Result)]
    shown = [each for result in results for each in result.shown if not isinstance(each, Text)]
    said = [block for block in turn.blocks if isinstance(block, Text | Image | Document)]
    messages = [_result(result) for result in results]
    if shown or said or not results:
        messages.append({"role": "user", "content": _content([*shown, *said])})
    return messages


def _assistant(turn: Turn) -> Json:
    message: Json = {"role": "assistant"}
    if said := [block for block in turn.blocks if isinstance(block, Text) and block.text]:
        message["content"] = _content([*said])
    if calls := [block for block in turn.blocks if isinstance(block, Use)]:
        message["tool_calls"] = [_call(use) for use in calls]
    return message


def _call(use: Use) -> Json:
    function = {"name": use.name, "arguments": msgspec.json.encode(use.input).decode()}
    return {"id": use.id, "type": "function", "function": function}


def _result(result: Result) -> Json:
    text = "\n".join(each.text for each in result.shown if isinstance(each, Text))
    if result.is_error and "error" not in text[:200].lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": result.id, "content": text}


def _content(blocks: list[Shown]) -> str | list[Json]:
    if not blocks:
        return ""
    if len(blocks) == 1 and isinstance(blocks[0], Text):
        return blocks[0].text
    return [_part(block) for block in blocks]


def _part(block: Shown) -> Json:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Image():
            url = block.url or f"data:{block.media_type};base64,{block.data}"
            return {"type": "image_url", "image_url": {"url": url}}
        case Document(_, data, title):
            url = f"data:application/pdf;base64,{data}"
            return {"type": "file", "file": {"filename": title or "document.pdf", "file_data": url}}


def _user(name: str | None) -> str | None:
    if name is None or len(name) <= MAX_USER_CHARS:
        return name
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()


def _tools(ask: Ask) -> Json:
    tools: Json = {"tools": [_tool(tool) for tool in ask.tools]}
    if ask.choice is not None:
        tools["tool_choice"] = _choice(ask.choice)
    if ask.parallel is not None:
        tools["parallel_tool_calls"] = ask.parallel
    return tools


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _choice(choice: Choice) -> str | Json:
    if choice.kind == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.kind]


def _tool(tool: Tool) -> Json:
    function: Json = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
