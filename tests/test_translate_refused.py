"""What of a request another API cannot carry, and where its client is told that it is."""

import pytest

from coordinator.apis import Api
from coordinator.translate.requests import Untranslatable, translated
from tests.translate_asks import (
    ANTHROPIC,
    CHAT,
    CHAT_TOOLS,
    CONVERSE,
    HELLO,
    RESPONSES,
    TOOLS,
    Json,
    assistant,
    call,
    came,
    chat,
    message,
    refused,
    result,
    use,
    user,
)


@pytest.mark.parametrize(
    ("api_from", "api_to", "body", "param"),
    [
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, n=2), "n", id="several answers"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, logprobs=True), "logprobs", id="logprobs"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, presence_penalty=1), "presence_penalty", id="-"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, guided_json={}), "guided_json", id="unknown"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, stop="\n"), "stop", id="a blank stop"),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(HELLO, response_format={"type": "json_object"}),
            "response_format.type",
            id="any JSON",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(user([{"type": "input_audio", "input_audio": {}}])),
            "messages[0].content[0].type",
            id="audio",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])),
            "messages[0].content[0].image_url",
            id="an image elsewhere",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(
                user([{"type": "image_url", "image_url": {"url": "data:image/tiff;base64,aWk="}}])
            ),
            "messages[0].content[0]",
            id="a format that is not taken",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(HELLO, assistant(None, call("c", "f", '{"a":'))),
            "messages[1].tool_calls[0].function.arguments",
            id="arguments that are not whole",
        ),
        pytest.param(CHAT, ANTHROPIC, chat(user("")), "messages[0].content", id="nothing said"),
        pytest.param(CHAT, ANTHROPIC, chat(assistant("hi")), "messages", id="the model first"),
        pytest.param(
            CHAT, ANTHROPIC, chat({"role": "system", "content": "hi"}), "messages", id="nobody"
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(HELLO, thinking_token_budget=10),
            "thinking_token_budget",
            id="too few thoughts",
        ),
        pytest.param(
            CHAT,
            CONVERSE,
            chat(HELLO, tools=CHAT_TOOLS, parallel_tool_calls=False),
            "parallel_tool_calls",
            id="Converse cannot forbid parallel calls",
        ),
        pytest.param(
            CHAT,
            CONVERSE,
            chat(HELLO, assistant(None, call("c", "weather")), result("c", "rain")),
            "tools",
            id="Converse wants tools beside calls",
        ),
        pytest.param(
            ANTHROPIC,
            CONVERSE,
            message(
                HELLO,
                {"role": "assistant", "content": [use("c", "weather")]},
                user([came("c")]),
                tools=TOOLS,
                tool_choice={"type": "none"},
            ),
            "tool_choice",
            id="Converse cannot forbid tools",
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(HELLO, {"role": "assistant", "content": "once"}),
            "messages[1]",
            id="a chat is not gone on with",
        ),
        pytest.param(ANTHROPIC, CHAT, message(HELLO, top_k=5), "top_k", id="top k"),
        pytest.param(
            ANTHROPIC, CHAT, message(HELLO, stop_sequences=[*"abcde"]), "stop_sequences", id="stops"
        ),
        pytest.param(ANTHROPIC, CHAT, {**chat(HELLO)}, None, id="no limit"),
        pytest.param(ANTHROPIC, CHAT, message(HELLO, mcp_servers=[{}]), "mcp_servers", id="MCP"),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(HELLO, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
            "tools[0].type",
            id="a tool of Anthropic's",
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(user([{"type": "image", "source": {"type": "file", "file_id": "f"}}])),
            "messages[0].content[0].source.type",
            id="a file that Anthropic keeps",
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(user([use("c", "weather")])),
            "messages[0].content[0]",
            id="a call by the user",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "background": True},
            "background",
            id="bg",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "previous_response_id": "resp_1"},
            "previous_response_id",
            id="a response that others keep",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "tools": [{"type": "web_search"}]},
            "tools[0]",
            id="a tool of OpenAI's",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": [{"type": "item_reference", "id": "x"}]},
            "input[0].type",
            id="an item that others keep",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": [user([{"type": "input_image", "file_id": "f"}])]},
            "input",
            id="a file that OpenAI keeps",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "text": {"verbosity": "low"}},
            "text.verbosity",
            id="verbosity",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "text": {"format": {"type": "json_object"}}},
            "text.format",
            id="any JSON in a response",
        ),
        pytest.param(
            RESPONSES,
            ANTHROPIC,
            {"model": "m", "input": [{"role": "assistant", "content": "hi"}]},
            "input",
            id="the model first in a response",
        ),
        pytest.param(
            RESPONSES,
            CONVERSE,
            {"model": "m", "input": [user([{"type": "input_image", "image_url": "https://x/a"}])]},
            "input",
            id="an image at an address in a response",
        ),
        pytest.param(Api.OPENAI_COMPLETIONS, ANTHROPIC, {"prompt": "hi"}, None, id="completion"),
        pytest.param(CHAT, RESPONSES, chat(HELLO), None, id="nobody answers in responses"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_its_place(
    api_from: Api, api_to: Api, body: Json, param: str | None
) -> None:
    assert refused(api_from, api_to, body) == param


def test_a_refusal_repeats_nothing_of_the_content() -> None:
    secret = "my number is 12"
    for body in (
        chat(user([{"type": secret}])),
        chat({"role": secret, "content": secret}),
        {**chat(HELLO), secret + "\n": 1},
    ):
        with pytest.raises(Untranslatable) as error:
            translated(CHAT, ANTHROPIC, body)
        assert secret not in error.value.message or error.value.param == secret
