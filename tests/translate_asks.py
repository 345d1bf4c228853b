"""Requests to translate, put and checked by the shapes that the APIs' own libraries publish."""

import copy
import functools
import json
from typing import Any

import pytest
from anthropic.types import message_create_params as anthropic_params
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from openai.types.chat import completion_create_params as chat_params
from pydantic import TypeAdapter

from coordinator.apis import Api
from coordinator.translate.requests import Untranslatable, translated

CHAT, ANTHROPIC, CONVERSE = Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES, Api.BEDROCK_CONVERSE
RESPONSES = Api.OPENAI_RESPONSES
Json = dict[str, Any]

_CHAT: TypeAdapter[Any] = TypeAdapter(chat_params.CompletionCreateParamsNonStreaming)
_CHAT_STREAM: TypeAdapter[Any] = TypeAdapter(chat_params.CompletionCreateParamsStreaming)
_ANTHROPIC: TypeAdapter[Any] = TypeAdapter(anthropic_params.MessageCreateParamsNonStreaming)
_ANTHROPIC_STREAM: TypeAdapter[Any] = TypeAdapter(anthropic_params.MessageCreateParamsStreaming)


@functools.cache
def converse_shape() -> Any:
    described = Loader().load_service_model("bedrock-runtime", "service-2")
    return ServiceModel(described).operation_model("Converse").input_shape


def drain(value: Any) -> None:
    """Read all of a validated value: what is iterable is not validated before."""
    for each in value.values() if isinstance(value, dict) else value:
        if not isinstance(each, str) and hasattr(each, "__iter__"):
            drain(each)


def check(api: Api, body: Json) -> None:
    """Hold a body against the official definition of its API."""
    streams = body.get("stream")
    if api is CHAT:
        drain((_CHAT_STREAM if streams else _CHAT).validate_python(body))
    elif api is ANTHROPIC:
        drain((_ANTHROPIC_STREAM if streams else _ANTHROPIC).validate_python(body))
    else:
        report = ParamValidator().validate({"modelId": "m", **body}, converse_shape())
        assert not report.has_errors(), report.generate_report()


def put(api_from: Api, api_to: Api, body: Json) -> Json:
    before = copy.deepcopy(body)
    result = translated(api_from, api_to, body)
    assert body == before
    check(api_to, json.loads(json.dumps(result)))
    return result


def refused(api_from: Api, api_to: Api, body: Json) -> str | None:
    with pytest.raises(Untranslatable) as error:
        translated(api_from, api_to, body)
    return error.value.param


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any = None, *calls: Json) -> Json:
    said = {} if content is None else {"content": content}
    return {"role": "assistant", **said, **({"tool_calls": [*calls]} if calls else {})}


def call(name: str, function: str, arguments: str = "{}") -> Json:
    return {
        "id": name,
        "type": "function",
        "function": {"name": function, "arguments": arguments},
    }


def result(name: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": name, "content": content}


def chat(*messages: Json, **more: Any) -> Json:
    return {"model": "m", "messages": list(messages), **more}


def message(*messages: Json, **more: Any) -> Json:
    return {"model": "m", "max_tokens": 100, "messages": list(messages), **more}


def text(said: str, **more: Any) -> Json:
    return {"type": "text", "text": said, **more}


def use(name: str, function: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "id": name, "name": function, "input": arguments}


def came(name: str, content: Any = None, **more: Any) -> Json:
    given = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": name, **given, **more}


HELLO = user("hello")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Says it.", "parameters": SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
TOOLS = [{"name": "weather", "description": "Says it.", "input_schema": SCHEMA}]
SPECS = [
    {
        "toolSpec": {
            "name": "weather",
            "description": "Says it.",
            "inputSchema": {"json": SCHEMA},
        }
    }
]
PNG = "data:image/png;base64,aWk="
PICTURE = {"type": "image_url", "image_url": {"url": PNG}}
BASE64 = {"type": "base64", "media_type": "image/png", "data": "aWk="}
LINKED = {"type": "image_url", "image_url": {"url": "https://pictures.test/a.png"}}
PDF = "data:application/pdf;base64,aWk="
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
