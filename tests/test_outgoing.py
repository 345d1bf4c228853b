"""What a policy sets is said in the words of the API in which a backend is asked."""

import json
from typing import Any

import pytest

from coordinator.apis import Api
from coordinator.candidates import Candidate, Provider
from coordinator.canonical import Canonical, parse
from coordinator.outgoing import body_for
from coordinator.providers.dialects import Dialect
from lineside.ids import EngineId, ModelName
from policies.model import SetFields

SET = SetFields(
    max_tokens=3,
    defaults={"stop": "END", "temperature": 0.5},
    parameters={"seed": 7, "presence_penalty": 0},
)


def sent(api: Api, backend: Api) -> dict[str, Any]:
    """Return what a provider is sent of a request, less what was asked."""
    said = {"input": "hi"} if api is Api.OPENAI_RESPONSES else {"messages": [USER]}
    limit = "max_output_tokens" if api is Api.OPENAI_RESPONSES else "max_tokens"
    asked = parse(api, {}, json.dumps({"model": "m", limit: 9} | said).encode())
    assert isinstance(asked, Canonical)
    upstream = {ModelName("m"): "up"}
    target = Provider(
        EngineId("p"), "http://p", "p", upstream, dialect=Dialect(native=frozenset({backend}))
    )
    body: dict[str, Any] = json.loads(
        body_for(asked, Candidate(target, ModelName("m")), SET, announce=False)
    )
    return {key: body[key] for key in body if key not in ("model", "messages", "input")}


USER = {"role": "user", "content": "hi"}
SAMPLING = {"stop": "END", "temperature": 0.5, "seed": 7, "presence_penalty": 0}


@pytest.mark.parametrize(
    ("api", "backend", "expected"),
    [
        pytest.param(Api.OPENAI_CHAT, Api.OPENAI_CHAT, {"max_tokens": 3} | SAMPLING, id="a chat"),
        pytest.param(
            Api.ANTHROPIC_MESSAGES,
            Api.OPENAI_CHAT,
            {"max_completion_tokens": 3} | SAMPLING | {"stop": ["END"]},
            id="a message, for a chat",
        ),
        pytest.param(
            Api.ANTHROPIC_MESSAGES,
            Api.ANTHROPIC_MESSAGES,
            {"max_tokens": 3, "temperature": 0.5, "stop_sequences": ["END"]},
            id="a message",
        ),
        pytest.param(
            Api.ANTHROPIC_MESSAGES,
            Api.BEDROCK_CONVERSE,
            {"inferenceConfig": {"maxTokens": 3, "temperature": 0.5, "stopSequences": ["END"]}},
            id="a message, for Converse",
        ),
        pytest.param(
            Api.OPENAI_RESPONSES,
            Api.OPENAI_RESPONSES,
            {"max_output_tokens": 3, "temperature": 0.5},
            id="a response",
        ),
    ],
)
def test_it_is_said_in_the_words_of_each_api(
    api: Api, backend: Api, expected: dict[str, Any]
) -> None:
    assert sent(api, backend) == expected
