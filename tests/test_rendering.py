"""Chats become the text that the engine renders: its captures are the truth."""

import json
import time
from pathlib import Path
from typing import Any

import jinja2
import pytest

from coordinator.canonical import Api, Canonical, parse
from coordinator.tokens.content_format import ContentFormat
from coordinator.tokens.conversation import CUT
from coordinator.tokens.rendering import ChatTemplate, NotRendered, Reason

PARTS = (
    "{% for message in messages %}[{{ message.role }}:"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}"
    "({{ part.text }})"
    "{% endfor %}{% endif %}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
STRING = (
    "{% for message in messages %}[{{ message.role }}:{{ message.content }}]{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
DUMP = "{{ messages | tojson }}{% if tools %}{{ tools | tojson }}{% endif %}"


def template(source: str, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens)


def chat(*messages: Any, **fields: Any) -> Canonical:
    body = {"model": "m", "messages": list(messages), **fields}
    canonical = parse(Api.OPENAI_CHAT, {}, json.dumps(body).encode())
    assert isinstance(canonical, Canonical), canonical
    return canonical


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def reason(source: ChatTemplate, canonical: Canonical) -> Reason:
    with pytest.raises(NotRendered) as raised:
        source.render(canonical)
    return raised.value.reason


@pytest.mark.parametrize(
    ("source", "content", "rendered"),
    [
        pytest.param(STRING, "a", "[user:a]>", id="a string stays one"),
        pytest.param(PARTS, "a", "[user:(a)]>", id="a string becomes a part"),
        pytest.param(STRING, [text("a"), "", "b"], "[user:a\nb]>", id="parts are joined by lines"),
        pytest.param(PARTS, [text("a"), "b"], "[user:(a)(b)]>", id="parts stay parts"),
        pytest.param(
            PARTS.replace("part.text", "part | tojson"),
            [text("a") | {"cache_control": {"type": "ephemeral"}, "name": "n"}],
            '[user:({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}})]>',
            id="a part keeps keys that are none of its own",
        ),
        pytest.param(STRING, None, "[user:]>", id="no content is empty"),
        pytest.param(
            STRING,
            [{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}],
            "[user:no\nhm]>",
            id="other kinds of text",
        ),
    ],
)
def test_content_takes_the_form_that_the_template_reads(
    source: str, content: Any, rendered: str
) -> None:
    assert template(source).render(chat(user(content))) == rendered


MACRO = "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(STRING, ContentFormat.STRING, id="prints the content"),
        pytest.param(PARTS, ContentFormat.PARTS, id="walks the content"),
        pytest.param(
            "{% set rest = messages[1:] %}{% for m in rest %}"
            "{% for p in m['content'] | list %}{% endfor %}{% endfor %}",
            ContentFormat.PARTS,
            id="through an alias, a slice and a filter",
        ),
        pytest.param(
            MACRO + "{% for m in messages %}{{ show(c=m.content) }}{% endfor %}",
            ContentFormat.PARTS,
            id="through a macro's parameter",
        ),
        pytest.param(
            MACRO + "{% for m in messages %}{{ show(m.role) }}{{ m.content }}{% endfor %}",
            ContentFormat.STRING,
            id="a macro that walks something else",
        ),
        pytest.param(
            "{% for i, m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}",
            ContentFormat.STRING,
            id="two loop variables: detection gives up",
        ),
    ],
)
def test_the_content_format_is_told_from_the_template(source: str, expected: ContentFormat) -> None:
    assert template(source).content_format is expected


def test_tool_calls_and_results_take_the_engines_form() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "ä"}'}},
        {"id": "2", "type": "function", "function": {"name": "f", "arguments": "not JSON"}},
        {"id": "3", "type": "function", "function": {"name": "f", "arguments": "[1]"}},
    ]
    rendered = template(DUMP).render(
        chat(
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "r"},
            {"role": "assistant", "content": "x", "tool_calls": []},
            {"role": "tool", "tool_call_id": "1", "content": [text("a"), text("b")]},
            {"role": "user", "content": "q", "name": "bob", "unknown": 1},
        )
    )
    assert json.loads(rendered) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": "f", "arguments": {"a": "ä"} if call["id"] == "1" else {}},
                }
                for call in calls
            ],
            "reasoning": "r",
            "reasoning_content": "r",
        },
        {"role": "assistant", "content": "x"},
        {"role": "tool", "content": "a\nb", "tool_call_id": "1"},
        {"role": "user", "content": "q", "name": "bob"},
    ]
    assert "ä" in rendered, "JSON is printed as text, not as escapes"


def test_tools_are_printed_as_the_engines_request_model_prints_them() -> None:
    tools = [
        {"function": {"parameters": {"b": 1, "a": "<&>"}, "name": "f", "unknown": 1}, "x": 1},
        {"type": "function", "function": {"name": "g", "strict": False}, "defer_loading": True},
    ]
    rendered = template("{{ tools | tojson }}").render(chat(user("q"), tools=tools))
    assert rendered == (
        '[{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"b": 1, "a": "<&>"}}}, '
        '{"type": "function", "function": {"name": "g", "description": null, '
        '"parameters": null, "strict": false, "defer_loading": true}, "defer_loading": true}]'
    )


def test_a_template_for_tools_is_used_with_tools_only() -> None:
    named = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})
    assert named.render(chat(user("q"))) == "plain"
    assert named.render(chat(user("q"), tools=[{"function": {"name": "f"}}])) == "tools"


def test_developers_become_one_system_message_where_the_template_knows_none() -> None:
    messages = (
        {"role": "system", "content": "be brief"},
        user("q"),
        {"role": "developer", "content": [text("be"), text("kind")], "tools": []},
    )
    assert template(STRING).render(chat(*messages)) == "[system:be brief\n\nbe\nkind][user:q]>"
    knows = template(STRING + "{# 'developer' #}")
    assert knows.render(chat(*messages)) == "[system:be brief][user:q][developer:be\nkind]>"


@pytest.mark.parametrize(
    ("fields", "rendered"),
    [
        pytest.param({}, "[|||True]", id="none"),
        pytest.param(
            {"chat_template_kwargs": {"mood": "calm", "unread": 1}},
            "[calm|||True]",
            id="a variable that the template reads",
        ),
        pytest.param(
            {"reasoning_effort": "low"}, "[|low|True|True]", id="effort turns thinking on"
        ),
        pytest.param(
            {"reasoning_effort": "none"}, "[|none|False|True]", id="no effort turns it off"
        ),
        pytest.param(
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "[|low|False|True]",
            id="the client's word on thinking counts",
        ),
        pytest.param({"add_generation_prompt": False}, "[|||False]", id="no generation prompt"),
    ],
)
def test_a_request_sets_template_variables(fields: dict[str, Any], rendered: str) -> None:
    source = "[{{ mood }}|{{ reasoning_effort }}|{{ enable_thinking }}|{{ add_generation_prompt }}]"
    assert template(source).render(chat(user("q"), **fields)) == rendered


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        pytest.param(STRING, "[user:q][assistant: and then", id="spacing is kept"),
        pytest.param(PARTS, "[user:(q)][assistant:( and then", id="in the last part"),
        pytest.param(
            STRING.replace("message.content", "message.content | trim"),
            "[user:q][assistant:and then",
            id="spacing that the template trims is gone at the end too",
        ),
    ],
)
def test_a_final_message_can_be_left_open(source: str, rendered: str) -> None:
    open_ended = chat(
        user("q"),
        {"role": "assistant", "content": " and then" + (" " if "trim" in source else "")},
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert template(source).render(open_ended) == rendered


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        pytest.param(PARTS, "[user:a][user:(look )(", id="parts: up to the image"),
        pytest.param(STRING, "[user:a][user:", id="string: the image comes before all text"),
    ],
)
def test_a_prompt_is_cut_at_its_first_media_part(source: str, rendered: str) -> None:
    seen = chat(user("a"), user([text("look "), IMAGE, text("at"), IMAGE]), user("b"))
    expected = rendered.replace("[user:a]", "[user:(a)]") if source is PARTS else rendered
    assert template(source).render(seen) == expected


def test_a_template_that_drops_media_leaves_nothing_to_route_by() -> None:
    drops = template("{% for m in messages %}{{ m.role }}{% endfor %}")
    assert reason(drops, chat(user([IMAGE]))) is Reason.MEDIA_LOST


def test_text_that_looks_like_the_cut_only_shortens_what_its_sender_is_routed_by() -> None:
    assert template(STRING).render(chat(user(f"a{CUT}b"))) == "[user:a"


def test_whitespace_loops_and_marks_are_those_of_the_engine() -> None:
    source = (
        "{% for message in messages %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ bos_token }}{{ message.content }}{% endgeneration %}\n"
        "{% endfor %}\n"
    )
    assert template(source, bos_token="<s>").render(chat(user("a"), user("b"))) == "<s>a"


@pytest.mark.parametrize(
    ("source", "fields", "expected"),
    [
        pytest.param("x", {"chat_template": "y"}, Reason.CLIENT_TEMPLATE, id="a client's template"),
        pytest.param("{{ raise_exception('no') }}", {}, Reason.REFUSED, id="the template raises"),
        pytest.param("{{ messages[9].role }}", {}, Reason.REFUSED, id="an index out of range"),
        pytest.param("{{ 1 // 0 }}", {}, Reason.REFUSED, id="a division by zero"),
        pytest.param(
            "{{ messages.append(1) }}", {}, Reason.REFUSED, id="a template that changes a message"
        ),
        pytest.param(
            "{{ messages.__class__.__mro__ }}", {}, Reason.REFUSED, id="a way out of the sandbox"
        ),
        pytest.param(
            "{{ '{0.__class__.__mro__}'.format(messages) }}",
            {},
            Reason.REFUSED,
            id="a way out through a format",
        ),
        pytest.param(
            "{% set ns = namespace() %}{{ ns.__class__.__mro__ }}",
            {},
            Reason.REFUSED,
            id="a way out by a namespace",
        ),
        pytest.param(
            "{% set ns = namespace(s='{0.__class__.__mro__}') %}{{ ns.s.format(messages) }}",
            {},
            Reason.REFUSED,
            id="a way out by what a namespace holds",
        ),
        pytest.param(
            "{% for m in messages %}{{ loop.__class__.__mro__ }}{% endfor %}",
            {},
            Reason.REFUSED,
            id="a way out through a loop",
        ),
        pytest.param(
            "x", {"chat_template_kwargs": {"tokenize": True}}, Reason.REFUSED, id="reserved names"
        ),
        pytest.param("x", {"chat_template_kwargs": 5}, Reason.REFUSED, id="variables as a number"),
        pytest.param("x", {"tools": [{"name": "f"}]}, Reason.REFUSED, id="a tool of another form"),
        pytest.param(
            "x", {"continue_final_message": True}, Reason.REFUSED, id="left open, yet a new turn"
        ),
        pytest.param(
            "{{ messages[0].role }}",
            {"continue_final_message": True, "add_generation_prompt": False},
            Reason.REFUSED,
            id="left open, and the template has no content",
        ),
        pytest.param(
            "{{ messages[0].content[1:] }}",
            {"continue_final_message": True, "add_generation_prompt": False},
            Reason.REFUSED,
            id="left open, and the template drops a part of it",
        ),
        pytest.param(
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            {},
            Reason.REFUSED,
            id="a macro that calls itself",
        ),
        pytest.param("{{ 'x' * 99999999 }}", {}, Reason.TOO_LARGE, id="a text multiplied"),
        pytest.param("{{ 9 ** 999999999 }}", {}, Reason.TOO_LARGE, id="a power"),
        pytest.param(
            "{% for i in range(90000) %}{{ 'x' * 999 }}{% endfor %}",
            {},
            Reason.TOO_LARGE,
            id="endless output",
        ),
    ],
)
def test_what_cannot_be_rendered_says_why(
    source: str, fields: dict[str, Any], expected: Reason
) -> None:
    assert reason(template(source), chat(user("q"), **fields)) is expected


def test_a_template_that_runs_too_long_is_stopped() -> None:
    slow = template("{% for i in range(9000) %}x{% endfor %}")
    with pytest.raises(NotRendered) as raised:
        slow.render(chat(user("q")), seconds=-1.0)
    assert raised.value.reason is Reason.TOO_SLOW


def test_a_chat_cannot_keep_a_template_busy() -> None:
    pairs = template("{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}")
    many = chat(*(user("q") for _ in range(20_000)))
    began = time.monotonic()
    with pytest.raises(NotRendered) as raised:
        pairs.render(many, seconds=0.05)
    assert raised.value.reason is Reason.TOO_SLOW
    assert time.monotonic() - began < 5.0, "400 million passes would take a minute"


def test_a_model_without_template_has_no_chats() -> None:
    assert reason(ChatTemplate({}, {}), chat(user("q"))) is Reason.NO_TEMPLATE
    assert ChatTemplate({}, {}).content_format is None


def test_a_broken_template_is_found_when_it_is_loaded() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        template("{% for %}")


def test_rendering_changes_nothing_of_the_request() -> None:
    open_ended = chat(user([text("a")]), continue_final_message=True, add_generation_prompt=False)
    before = json.dumps(open_ended.body)
    template(PARTS).render(open_ended)
    assert json.dumps(open_ended.body) == before


@pytest.mark.parametrize(
    ("files", "without_tools", "with_tools"),
    [
        pytest.param(
            {"tokenizer_config.json": '{"chat_template": "a"}'}, "a", "a", id="in the configuration"
        ),
        pytest.param(
            {
                "tokenizer_config.json": json.dumps(
                    {
                        "chat_template": [
                            {"name": "default", "template": "a"},
                            {"name": "tool_use", "template": "b"},
                        ]
                    }
                )
            },
            "a",
            "b",
            id="named ones in the configuration",
        ),
        pytest.param(
            {"tokenizer_config.json": '{"chat_template": "a"}', "chat_template.jinja": "f"},
            "f",
            "f",
            id="a file comes first",
        ),
        pytest.param(
            {"chat_template.jinja": "f", "additional_chat_templates/tool_use.jinja": "t"},
            "f",
            "t",
            id="named files",
        ),
        pytest.param(
            {
                "tokenizer_config.json": '{"chat_template": "a"}',
                "chat_template.json": '{"chat_template": "p"}',
            },
            "p",
            "a",
            id="a processor's, for chats without tools",
        ),
    ],
)
def test_templates_are_found_in_a_models_directory(
    tmp_path: Path, files: dict[str, str], without_tools: str, with_tools: str
) -> None:
    write(tmp_path, files)
    loaded = ChatTemplate.from_directory(tmp_path)
    assert loaded.render(chat(user("q"))) == without_tools
    assert loaded.render(chat(user("q"), tools=[{"function": {"name": "f"}}])) == with_tools


def test_special_tokens_are_variables(tmp_path: Path) -> None:
    config = {
        "chat_template": "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "unk_token": None,
    }
    write(tmp_path, {"tokenizer_config.json": json.dumps(config)})
    write(tmp_path, {"special_tokens_map.json": '{"pad_token": {"content": "<pad>"}}'})
    assert ChatTemplate.from_directory(tmp_path).render(chat(user("q"))) == "<s></s><pad>"


def write(directory: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


SYSTEM_FIRST = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('system must come first') }}{% endif %}"
    "[{{ message.role }}:{{ message.content }}]{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        pytest.param(STRING, "[system:a][user:b][system:c][user:d]>", id="anywhere"),
        pytest.param(SYSTEM_FIRST, "[system:ac][user:b][user:d]", id="in front only"),
        pytest.param(
            "{{ strftime_now('') }}" + STRING,
            "[system:ac][user:b][user:d]>",
            id="a template that the engine cannot ask",
        ),
    ],
)
def test_system_messages_within_an_anthropic_conversation_stand_where_the_engine_puts_them(
    source: str, rendered: str
) -> None:
    turns = [user("b"), {"role": "system", "content": "c"}, user("d")]
    body = {"model": "m", "max_tokens": 1, "system": "a", "messages": turns}
    message = parse(Api.ANTHROPIC_MESSAGES, {}, json.dumps(body).encode())
    assert isinstance(message, Canonical)
    assert template(source).render(message) == rendered


def test_a_chats_system_messages_stay_where_they_are() -> None:
    turns = [user("b"), {"role": "system", "content": "c"}]
    assert reason(template(SYSTEM_FIRST), chat(*turns)) is Reason.REFUSED
