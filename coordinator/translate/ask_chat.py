"""A chat's body read into an `Ask`. Pure.

What the answer depends on and no other API has is refused; what only helps a backend along, and
what only vLLM knows, is left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from coordinator.translate.ask import (
    Ask,
    Block,
    Choice,
    Document,
    Image,
    Json,
    Result,
    Text,
    Tool,
    Turn,
    Use,
)
from coordinator.translate.collect import parsed
from coordinator.translate.untranslatable import cannot_carry, typed, unknown_fields


class _TextPart(msgspec.Struct, tag="text"):
    text: str
    cache_control: Json | None = None


class _Url(msgspec.Struct):
    url: str


class _ImagePart(msgspec.Struct, tag="image_url"):
    image_url: _Url
    cache_control: Json | None = None


class _RefusalPart(msgspec.Struct, tag="refusal"):
    refusal: str


class _FileData(msgspec.Struct):
    file_data: str
    filename: str | None = None


class _FilePart(msgspec.Struct, tag="file"):
    file: _FileData


_Part: TypeAlias = _TextPart | _ImagePart | _RefusalPart | _FilePart
_Content: TypeAlias = str | list[_Part] | None


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""


class _Call(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _System(msgspec.Struct, tag_field="role", tag="system"):
    content: _Content


class _Developer(msgspec.Struct, tag_field="role", tag="developer"):
    content: _Content


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: _Content


class _Assistant(msgspec.Struct, tag_field="role", tag="assistant"):
    content: _Content = None
    tool_calls: list[_Call] | None = None
    refusal: str | None = None
    function_call: None = None
    audio: None = None


class _ToolResult(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: _Content = None


_Message: TypeAlias = _System | _Developer | _User | _Assistant | _ToolResult


class _Declared(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    function: _Declared
    type: Literal["function"] = "function"
    cache_control: Json | None = None


class _Name(msgspec.Struct):
    name: str


class _Named(msgspec.Struct):
    type: Literal["function"]
    function: _Name


class _Schema(msgspec.Struct):
    schema: Json


class _Format(msgspec.Struct):
    type: Literal["text", "json_schema"]
    json_schema: _Schema | None = None


class _Body(msgspec.Struct):
    model: str
    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Named | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    thinking_token_budget: int | None = None
    response_format: _Format | None = None


LEFT_OUT = frozenset(
    {
        *(
            "stream_options",
            "seed",
            "service_tier",
            "store",
            "metadata",
            "prediction",
            "moderation",
        ),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("cache_salt", "vllm_xargs", "chat_template_kwargs", "session_id", "priority"),
        *("request_id", "kv_transfer_params", "ec_transfer_params", "include_reasoning"),
    }
)
"""Fields without which the answer is of the same kind."""

AS_USUAL: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Fields that no other API has, with the values that change nothing."""

_FIELDS = {"stops": "stop", "choice": "tool_choice", "parallel": "parallel_tool_calls"} | {
    "effort": "reasoning_effort",
    "thinking": "thinking_token_budget",
    "schema": "response_format",
}
_KNOWN = frozenset(_Body.__struct_fields__)
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,")


def ask_of_chat(body: Mapping[str, Any]) -> Ask:
    """Return what a chat asks for. Raises `Untranslatable`."""
    usual = {name for name, values in AS_USUAL.items() if body.get(name) in values}
    unknown_fields(body, _KNOWN, LEFT_OUT | usual)
    chat = typed(body, _Body)
    system, turns = _turns(chat.messages)
    stops = [chat.stop] if isinstance(chat.stop, str) else chat.stop or []
    limit = chat.max_completion_tokens
    return Ask(
        model=chat.model,
        turns=turns,
        fields=_FIELDS,
        system=system,
        tools=[_tool(tool) for tool in chat.tools or ()],
        choice=_choice(chat.tool_choice),
        parallel=chat.parallel_tool_calls,
        max_tokens=chat.max_tokens if limit is None else limit,
        temperature=chat.temperature,
        top_p=chat.top_p,
        top_k=chat.top_k,
        stops=[stop for stop in stops if stop],
        user=chat.safety_identifier or chat.user,
        stream=bool(chat.stream),
        effort=None if chat.reasoning_effort == "none" else chat.reasoning_effort,
        thinking=_thinking(chat),
        schema=_schema(chat.response_format),
    )


def _turns(messages: list[_Message]) -> tuple[list[Text], list[Turn]]:
    """Return the system's words in front, and the turns; results join what the user then says."""
    system: list[Text] = []
    turns: list[Turn] = []
    for place, message in enumerate(messages):
        at = f"messages[{place}]"
        match message:
            case _System(content) | _Developer(content):
                said = [text for text in _parts(content, at) if isinstance(text, Text)]
                if turns:
                    turns.append(Turn("system", [*said], at))
                else:
                    system += said
            case _User(content):
                _add(turns, Turn("user", [*_parts(content, at)], at))
            case _Assistant():
                turns.append(Turn("assistant", [*_assistant(message, at)], at))
            case _ToolResult(name, content):
                shown = [*_parts(content, at)]
                _add(turns, Turn("user", [Result(name, shown, False, at)], at))
    return system, turns


def _add(turns: list[Turn], turn: Turn) -> None:
    last = turns[-1] if turns else None
    if last is not None and last.role == "user" and isinstance(last.blocks[-1], Result):
        last.blocks += turn.blocks
    else:
        turns.append(turn)


def _assistant(message: _Assistant, at: str) -> Iterator[Block]:
    yield from _parts(message.content, at)
    if message.refusal:
        yield Text(message.refusal, f"{at}.refusal")
    for place, call in enumerate(message.tool_calls or ()):
        where = f"{at}.tool_calls[{place}]"
        arguments = parsed(call.function.arguments)
        if arguments is None:
            raise cannot_carry(f"{where}.function.arguments", "make it a JSON object")
        yield Use(call.id, call.function.name, arguments, where)


def _parts(content: _Content, at: str) -> Iterator[Text | Image | Document]:
    if isinstance(content, str):
        yield Text(content, f"{at}.content")
        return
    for place, part in enumerate(content or ()):
        where = f"{at}.content[{place}]"
        match part:
            case _TextPart(text, cache):
                yield Text(text, where, cache)
            case _RefusalPart(text):
                yield Text(text, where)
            case _ImagePart(image, cache):
                yield _image(image.url, where, cache)
            case _FilePart(file):
                found = _DATA_URL.match(file.file_data)
                if found is None or found[1] != "application/pdf":
                    raise cannot_carry(where, "send a PDF in a `data:` address")
                yield Document(where, file.file_data[found.end() :], file.filename)


def _image(url: str, at: str, cache: Json | None) -> Image:
    found = _DATA_URL.match(url)
    if found is not None:
        return Image(at, media_type=found[1], data=url[found.end() :], cache=cache)
    if not url.startswith(("https://", "http://")):
        raise cannot_carry(f"{at}.image_url", "send it as base64 in a `data:` address")
    return Image(at, url=url, cache=cache)


def _tool(tool: _Tool) -> Tool:
    declared = tool.function
    schema = declared.parameters or {"type": "object", "properties": {}}
    if "type" not in schema:
        schema = {"type": "object", **schema}
    return Tool(declared.name, declared.description, schema, declared.strict, tool.cache_control)


def _choice(choice: str | _Named | None) -> Choice | None:
    match choice:
        case None:
            return None
        case _Named():
            return Choice("tool", choice.function.name)
        case "required":
            return Choice("any")
        case "none":
            return Choice("none")
        case _:
            return Choice("auto")


def _thinking(chat: _Body) -> Json | None:
    if chat.reasoning_effort == "none":
        return {"type": "disabled"}
    if chat.thinking_token_budget is not None:
        return {"type": "enabled", "budget_tokens": chat.thinking_token_budget}
    return None


def _schema(wanted: _Format | None) -> Json | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.json_schema is None:
        raise cannot_carry("response_format.json_schema", "give it a schema")
    return wanted.json_schema.schema
