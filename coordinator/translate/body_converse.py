"""An `Ask` as a body for Bedrock's Converse and ConverseStream. Pure.

The model and whether to stream are in the path. What only Anthropic's models take goes along as
additional fields. Images must come as data; turns must take turns, so those of one side are joined.
"""

import msgspec

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
from coordinator.translate.body_anthropic import IMAGES, safe_id, without_blank
from coordinator.translate.thinking import is_on, thinking_of
from coordinator.translate.untranslatable import cannot_carry


def converse_body(ask: Ask) -> Json:
    """Return the body. Raises `Untranslatable`."""
    if ask.parallel is False:
        raise ask.refuse("parallel")
    turns = _turns(ask.turns)
    if not turns or turns[0]["role"] != "user":
        raise ask.refuse("messages", "begin with what the user says")
    body: Json = {"messages": turns}
    if ask.system:
        body["system"] = _blocks([*ask.system])
    thinking = thinking_of(ask)
    if limits := _inference(ask, is_on(thinking)):
        body["inferenceConfig"] = limits
    body |= _tools(ask)
    if ask.schema is not None:
        schema = {"schema": msgspec.json.encode(ask.schema).decode(), "name": "answer"}
        form = {"type": "json_schema", "structure": {"jsonSchema": schema}}
        body["outputConfig"] = {"textFormat": form}
    if ask.effort is not None:
        effort = "low" if ask.effort == "minimal" else ask.effort
        body["outputConfig"] = {**body.get("outputConfig", {}), "effort": effort}
    more = {"thinking": thinking, "top_k": None if is_on(thinking) else ask.top_k}
    if additional := {name: value for name, value in more.items() if value is not None}:
        body["additionalModelRequestFields"] = additional
    return body


def _turns(turns: list[Turn]) -> list[Json]:
    joined: list[Json] = []
    for turn in turns:
        blocks = _blocks(turn.blocks)
        if not blocks and turn.role == "user":
            raise cannot_carry(f"{turn.at}.content", "say something")
        if joined and joined[-1]["role"] == turn.role:
            joined[-1]["content"] += blocks
        elif blocks:
            joined.append({"role": turn.role, "content": blocks})
    if (
        joined
        and joined[-1]["role"] == "assistant"
        and "text" in (last := joined[-1]["content"])[-1]
    ):
        last[-1]["text"] = last[-1]["text"].rstrip()  # models that go on with it refuse a blank
    return joined


def _blocks(blocks: list[Block]) -> list[Json]:
    return [said for block in without_blank(blocks) for said in _block(block)]


def _block(block: Block) -> list[Json]:
    match block:
        case Text(text, _, cache):
            return [{"text": text}, *_point(cache)]
        case Image():
            return [_image(block), *_point(block.cache)]
        case Document(_, data, title, cache):
            document = {"format": "pdf", "name": _name(title), "source": {"bytes": data}}
            return [{"document": document}, *_point(cache)]
        case Thinking(_, ""):
            return []
        case Thinking(text, signature):
            thought = {"text": text, "signature": signature}
            return [{"reasoningContent": {"reasoningText": thought}}]
        case Redacted(data):
            return [{"reasoningContent": {"redactedContent": data}}]
        case Use(name, function, arguments, _, cache):
            use = {"toolUseId": safe_id(name), "name": function, "input": arguments}
            return [{"toolUse": use}, *_point(cache)]
        case Result():
            return [_result(block), *_point(block.cache)]


def _result(result: Result) -> Json:
    shown = [said for each in without_blank([*result.shown]) for said in _block(each)]
    content = [said for said in shown if "cachePoint" not in said]
    status = {"status": "error"} if result.is_error else {}
    return {"toolResult": {"toolUseId": safe_id(result.id), "content": content, **status}}


def _image(image: Image) -> Json:
    if image.url:
        raise cannot_carry(image.at, "send the image as base64")
    if image.media_type not in IMAGES:
        raise cannot_carry(image.at, "send a JPEG, PNG, GIF or WebP")
    form = image.media_type.removeprefix("image/")
    return {"image": {"format": form, "source": {"bytes": image.data}}}


def _name(title: str | None) -> str:
    """Return a document's name in the alphabet that the API takes."""
    kept = "".join(each if each.isascii() and each.isalnum() else " " for each in title or "")
    return " ".join(kept.split())[:200] or "document"


def _point(cache: Json | None) -> list[Json]:
    """Return a mark for the cache, where the client set one."""
    if cache is None:
        return []
    ttl = {"ttl": cache["ttl"]} if cache.get("ttl") in ("5m", "1h") else {}
    return [{"cachePoint": {"type": "default", **ttl}}]


def _inference(ask: Ask, thinks: bool) -> Json:
    temperature = None if thinks or ask.temperature is None else min(ask.temperature, 1.0)
    given = {
        "maxTokens": ask.max_tokens,
        "temperature": temperature,
        "topP": ask.top_p,
        "stopSequences": ask.stops or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tools(ask: Ask) -> Json:
    """Return the tools. The API cannot forbid them; without calls they can be left out."""
    kind = ask.choice.kind if ask.choice else "auto"
    if not ask.tools or kind == "none":
        if ask.uses:
            raise ask.refuse("choice" if ask.tools else "tools")
        return {}
    tools = [said for tool in ask.tools for said in (_tool(tool), *_point(tool.cache))]
    config: Json = {"tools": tools}
    if ask.choice is not None:
        name = {} if ask.choice.name is None else {"name": ask.choice.name}
        config["toolChoice"] = {kind: name}
    return {"toolConfig": config}


def _tool(tool: Tool) -> Json:
    spec: Json = {"name": tool.name, "inputSchema": {"json": tool.schema}}
    if tool.description:
        spec["description"] = tool.description
    if tool.strict is not None:
        spec["strict"] = tool.strict
    return {"toolSpec": spec}
