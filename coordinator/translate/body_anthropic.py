"""An `Ask` as a body for Anthropic's messages API. Pure.

Keeps to what that API takes: text that is not blank, ids of its alphabet, results first, a limit in
any case, tools wherever there are calls.
"""

import hashlib
import re

from coordinator.translate.ask import (
    Ask,
    Block,
    Document,
    Image,
    Json,
    Redacted,
    Result,
    Text,
    Thinking,
    Tool,
    Turn,
    Use,
)
from coordinator.translate.thinking import is_on, thinking_of
from coordinator.translate.untranslatable import cannot_carry

MAX_TOKENS = 8192
"""Of output, where the client says nothing: the API wants a number. A policy can set another."""

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

_EFFORTS = {"minimal": "low"}
_ALPHABET = re.compile(r"[^a-zA-Z0-9_-]")
MAX_ID_CHARS = 64


def anthropic_body(ask: Ask) -> Json:
    """Return the body. Raises `Untranslatable`."""
    thinking = thinking_of(ask)
    body: Json = {"model": ask.model, "max_tokens": _max_tokens(ask, thinking)}
    if ask.system:
        body["system"] = _content([*ask.system])
    turns = [turn for turn in (_turn(turn) for turn in ask.turns) if turn["content"]]
    if not turns or turns[0]["role"] != "user":
        raise ask.refuse("messages", "begin with what the user says")
    _trim_end(turns[-1])
    body["messages"] = turns
    body |= _tools(ask)
    if stops := [_stop(ask, stop) for stop in ask.stops]:
        body["stop_sequences"] = stops
    if thinking is not None:
        body["thinking"] = thinking
    body |= _sampling(ask, is_on(thinking))
    if output := _output(ask):
        body["output_config"] = output
    if ask.user:
        body["metadata"] = {"user_id": ask.user[:256]}
    return body | ({"stream": True} if ask.stream else {})


def safe_id(name: str) -> str:
    """Return a call's id in the alphabet that backends take: the same for the same, and unique."""
    if name and len(name) <= MAX_ID_CHARS and not _ALPHABET.search(name):
        return name
    return "call_" + hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:32]


def without_blank(blocks: list[Block]) -> list[Block]:
    """Leave out text that says nothing, which backends refuse."""
    return [block for block in blocks if not (isinstance(block, Text) and not block.text.strip())]


def _max_tokens(ask: Ask, thinking: Json | None) -> int:
    given = MAX_TOKENS if ask.max_tokens is None else ask.max_tokens
    budget = (thinking or {}).get("budget_tokens")
    if not isinstance(budget, int):
        return given
    return given if ask.max_tokens is not None else max(given, budget + MAX_TOKENS)


def _turn(turn: Turn) -> Json:
    blocks = [block for block in without_blank(turn.blocks) if not _is_unsigned(block)]
    if not blocks and turn.role == "user":
        raise cannot_carry(f"{turn.at}.content", "say something")
    return {"role": turn.role, "content": _content(blocks)}


def _is_unsigned(block: Block) -> bool:
    return isinstance(block, Thinking) and not block.signature


def _content(blocks: list[Block]) -> str | list[Json]:
    if len(blocks) == 1 and isinstance(blocks[0], Text) and blocks[0].cache is None:
        return blocks[0].text
    return [_block(block) for block in blocks]


def _trim_end(turn: Json) -> None:
    """Cut the white space after a turn that the model is to go on with; the API refuses it."""
    if turn["role"] != "assistant":
        return
    if isinstance(turn["content"], str):
        turn["content"] = turn["content"].rstrip()
    elif turn["content"][-1]["type"] == "text":
        last = turn["content"][-1]
        turn["content"] = [*turn["content"][:-1], {**last, "text": last["text"].rstrip()}]


def _block(block: Block) -> Json:
    match block:
        case Text(text, _, cache):
            return {"type": "text", "text": text, **_marked(cache)}
        case Image():
            return {"type": "image", "source": _image(block), **_marked(block.cache)}
        case Document(_, data, title, cache):
            source = {"type": "base64", "media_type": "application/pdf", "data": data}
            named = {} if title is None else {"title": title}
            return {"type": "document", "source": source, **named, **_marked(cache)}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case Redacted(data):
            return {"type": "redacted_thinking", "data": data}
        case Use(name, function, arguments, _, cache):
            use = {"type": "tool_use", "id": safe_id(name), "name": function, "input": arguments}
            return use | _marked(cache)
        case Result():
            return _result(block)


def _result(result: Result) -> Json:
    said: Json = {"type": "tool_result", "tool_use_id": safe_id(result.id)}
    if shown := without_blank([*result.shown]):
        said["content"] = _content(shown)
    if result.is_error:
        said["is_error"] = True
    return said | _marked(result.cache)


def _image(image: Image) -> Json:
    if image.url:
        return {"type": "url", "url": image.url}
    if image.media_type not in IMAGES:
        raise cannot_carry(image.at, "send a JPEG, PNG, GIF or WebP")
    return {"type": "base64", "media_type": image.media_type, "data": image.data}


def _marked(cache: Json | None) -> Json:
    return {} if cache is None else {"cache_control": cache}


def _tools(ask: Ask) -> Json:
    """Return the tools, and how to use them. Calls in the history need some, if only by name."""
    if not ask.tools:
        named = dict.fromkeys(use.name for use in ask.uses)
        shadows = [{"name": name, "input_schema": {"type": "object"}} for name in named]
        return {"tools": shadows, "tool_choice": {"type": "none"}} if shadows else {}
    tools: Json = {"tools": [_tool(tool) for tool in ask.tools]}
    kind = ask.choice.kind if ask.choice else "auto"
    choice: Json = {"type": kind}
    if ask.choice and ask.choice.name is not None:
        choice["name"] = ask.choice.name
    if ask.parallel is False and kind != "none":
        choice["disable_parallel_tool_use"] = True
    return tools if choice == {"type": "auto"} else {**tools, "tool_choice": choice}


def _tool(tool: Tool) -> Json:
    declared: Json = {"name": tool.name, "input_schema": tool.schema}
    if tool.description:
        declared["description"] = tool.description
    if tool.strict is not None:
        declared["strict"] = tool.strict
    return declared | _marked(tool.cache)


def _stop(ask: Ask, stop: str) -> str:
    if not stop.strip():
        raise ask.refuse("stops")
    return stop


def _sampling(ask: Ask, thinks: bool) -> Json:
    """Return what steers the choice of tokens. OpenAI's temperatures go up to 2, these to 1."""
    if thinks:
        return {} if ask.top_p is None else {"top_p": max(ask.top_p, 0.95)}
    given = {"top_p": ask.top_p, "top_k": ask.top_k}
    sampling: Json = {name: value for name, value in given.items() if value is not None}
    if ask.temperature is not None:
        sampling["temperature"] = min(ask.temperature, 1.0)
    return sampling


def _output(ask: Ask) -> Json:
    output: Json = {}
    if ask.effort is not None:
        output["effort"] = _EFFORTS.get(ask.effort, ask.effort)
    if ask.schema is not None:
        output["format"] = {"type": "json_schema", "schema": ask.schema}
    return output
