"""An Anthropic message's body read into an `Ask`. Pure.

Tools that run at Anthropic's, files and containers that are kept there, and the blocks that come of
them are refused: no other backend has them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from coordinator.translate import ask
from coordinator.translate.ask import Ask, Block, Choice, Json, Shown, Tool, Turn
from coordinator.translate.form_anthropic import ATTRIBUTION
from coordinator.translate.untranslatable import cannot_carry, typed, unknown_fields


class _Base64(msgspec.Struct, tag="base64"):
    media_type: str
    data: str


class _Url(msgspec.Struct, tag="url"):
    url: str


class _Plain(msgspec.Struct, tag="text"):
    data: str


class _Text(msgspec.Struct, tag="text"):
    text: str
    cache_control: Json | None = None


class _Image(msgspec.Struct, tag="image"):
    source: _Base64 | _Url
    cache_control: Json | None = None


class _Citations(msgspec.Struct):
    enabled: bool | None = None


class _Document(msgspec.Struct, tag="document"):
    source: _Base64 | _Plain
    citations: _Citations | None = None
    title: str | None = None
    context: str | None = None
    cache_control: Json | None = None


class _Thinking(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str = ""


class _Redacted(msgspec.Struct, tag="redacted_thinking"):
    data: str


class _Use(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: Json = {}
    cache_control: Json | None = None


class _Result(msgspec.Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[_Text | _Image | _Document] | None = None
    is_error: bool | None = None
    cache_control: Json | None = None


_Block: TypeAlias = _Text | _Image | _Document | _Thinking | _Redacted | _Use | _Result


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str
    input_schema: Json
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Json | None = None


class _Choice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Format(msgspec.Struct):
    schema: Json
    type: Literal["json_schema"] = "json_schema"


class _Output(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


class _Body(msgspec.Struct):
    model: str
    messages: list[_Message]
    max_tokens: int
    system: str | list[_Text] | None = None
    metadata: _Metadata | None = None
    output_config: _Output | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    thinking: Json | None = None
    tool_choice: _Choice | None = None
    tools: list[_Tool] | None = None
    top_k: int | None = None
    top_p: float | None = None


LEFT_OUT = frozenset(
    {
        *("service_tier", "speed", "inference_geo", "cache_control", "diagnostics"),
        *(
            "user_profile_id",
            "context_management",
            "cache_salt",
            "vllm_xargs",
            "chat_template_kwargs",
            "session_id",
        ),
        *("priority", "request_id", "kv_transfer_params", "ec_transfer_params"),
    }
)
"""Fields without which the answer is of the same kind."""

_FIELDS = {"stops": "stop_sequences", "choice": "tool_choice", "user": "metadata.user_id"} | {
    "parallel": "tool_choice.disable_parallel_tool_use",
    "effort": "output_config.effort",
    "schema": "output_config.format",
}
KNOWN = frozenset(_Body.__struct_fields__)


def ask_of_anthropic(body: Mapping[str, Any]) -> Ask:
    """Return what a message asks for. Raises `Untranslatable`."""
    unknown_fields(body, KNOWN, LEFT_OUT)
    message = typed(body, _Body)
    output = message.output_config or _Output()
    choice = message.tool_choice
    return Ask(
        model=message.model,
        turns=[_turn(turn, f"messages[{at}]") for at, turn in enumerate(message.messages)],
        fields=_FIELDS,
        system=_system(message.system),
        tools=[_tool(tool) for tool in message.tools or ()],
        choice=None if choice is None else Choice(choice.type, choice.name),
        parallel=False if choice is not None and choice.disable_parallel_tool_use else None,
        max_tokens=message.max_tokens,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        stops=message.stop_sequences or [],
        user=message.metadata.user_id if message.metadata else None,
        stream=bool(message.stream),
        effort=output.effort,
        thinking=message.thinking,
        schema=output.format.schema if output.format else None,
    )


def _system(system: str | list[_Text] | None) -> list[ask.Text]:
    """Return the system's words without the line of a client that differs in each request."""
    blocks = [_Text(system)] if isinstance(system, str) else system or []
    places = (
        ["system"] if isinstance(system, str) else [f"system[{at}]" for at in range(len(blocks))]
    )
    return [
        ask.Text(block.text, at, block.cache_control)
        for block, at in zip(blocks, places, strict=True)
        if not block.text.startswith(ATTRIBUTION)
    ]


def _turn(message: _Message, at: str) -> Turn:
    if isinstance(message.content, str):
        return Turn(message.role, [ask.Text(message.content, f"{at}.content")], at)
    blocks: list[Block] = []
    results: list[Block] = []
    for place, block in enumerate(message.content):
        where = f"{at}.content[{place}]"
        into = results if isinstance(block, _Result) and message.role == "user" else blocks
        into += _blocks(block, message.role, where)
    return Turn(message.role, results + blocks, at)


_SIDES: Mapping[type[_Block], str] = {
    _Thinking: "assistant",
    _Redacted: "assistant",
    _Use: "assistant",
    _Result: "user",
}


def _blocks(block: _Block, role: str, at: str) -> Iterator[Block]:
    if _SIDES.get(type(block), role) != role or (role == "system" and not isinstance(block, _Text)):
        raise cannot_carry(at)
    match block:
        case _Thinking(text, signature):
            yield ask.Thinking(text, signature, at)
        case _Redacted(data):
            yield ask.Redacted(data, at)
        case _Use(name, function, arguments, cache):
            yield ask.Use(name, function, arguments, at, cache)
        case _Result(name, content, is_error, cache):
            yield ask.Result(name, _shown(content, at), bool(is_error), at, cache)
        case _Text() | _Image() | _Document():
            yield from _piece(block, at)


def _shown(content: str | list[_Text | _Image | _Document] | None, at: str) -> list[Shown]:
    if isinstance(content, str):
        return [ask.Text(content, f"{at}.content")] if content else []
    pieces = enumerate(content or ())
    return [shown for place, piece in pieces for shown in _piece(piece, f"{at}.content[{place}]")]


def _piece(block: _Text | _Image | _Document, at: str) -> Iterator[Shown]:
    match block:
        case _Text(text, cache):
            yield ask.Text(text, at, cache)
        case _Image(_Url(url), cache):
            yield ask.Image(at, url=url, cache=cache)
        case _Image(_Base64(media_type, data), cache):
            yield ask.Image(at, media_type=media_type, data=data, cache=cache)
        case _Document(citations=_Citations(enabled=True)):
            raise cannot_carry(f"{at}.citations")
        case _Document(_Plain(data), _, title, context, cache):
            yield from (ask.Text(each, at) for each in (title, context) if each)
            yield ask.Text(data, at, cache)
        case _Document(_Base64(media_type, data), _, title, context, cache):
            if media_type != "application/pdf":
                raise cannot_carry(f"{at}.source.media_type")
            if context:
                yield ask.Text(context, at)
            yield ask.Document(at, data, title, cache)


def _tool(tool: _Tool) -> Tool:
    schema = tool.input_schema
    if "type" not in schema:
        schema = {**schema, "type": "object"}
    return Tool(tool.name, tool.description, schema, tool.strict, tool.cache_control)
