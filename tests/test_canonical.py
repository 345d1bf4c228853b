"""What is read of a request, what is refused and in which words, and the body an engine gets."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.canonical import (
    MAX_CONTAINERS,
    MAX_VALUES,
    Api,
    BadRequest,
    Canonical,
    Changes,
    parse,
    rewrite,
)
from coordinator.fields import MAX_CACHE_SALT_CHARS, MAX_DEPTH, MAX_MODEL_CHARS
from lineside.hashing import pack

CASES = Path(__file__).parent / "cases" / "http"
SECRET = b"the cluster's secret"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION = {"model": "m", "prompt": "hello"}
RESPONSE = {"model": "m", "input": "hello"}
EMBEDDING = {"model": "m", "input": "hello"}
MESSAGE = CHAT | {"max_tokens": 8}
BASES = {
    Api.OPENAI_CHAT: CHAT,
    Api.OPENAI_COMPLETIONS: COMPLETION,
    Api.OPENAI_RESPONSES: RESPONSE,
    Api.OPENAI_EMBEDDINGS: EMBEDDING,
    Api.ANTHROPIC_MESSAGES: MESSAGE,
}


def chat(headers: dict[str, str] | None = None, **fields: Any) -> Canonical:
    return read(Api.OPENAI_CHAT, CHAT | fields, headers)


def completion(**fields: Any) -> Canonical:
    return read(Api.OPENAI_COMPLETIONS, COMPLETION | fields)


def read(api: Api, body: dict[str, Any], headers: dict[str, str] | None = None) -> Canonical:
    canonical = parse(api, headers or {}, json.dumps(body).encode())
    assert isinstance(canonical, Canonical), canonical
    return canonical


def test_a_chat_is_read_once() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = CHAT | {
        "tools": tools,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 16.0,
        "max_tokens": 99,
        "n": 2,
        "cache_salt": "s",
        "unknown": {"kept": [1]},
    }
    raw = json.dumps(body).encode()
    assert parse(Api.OPENAI_CHAT, {"x-session-id": "abc"}, raw) == Canonical(
        api=Api.OPENAI_CHAT,
        model="m",
        body=body,
        raw=raw,
        chat=body,
        messages=[{"role": "user", "content": "hello"}],
        prompts=(),
        tools=tools,
        stream=True,
        usage_asked=True,
        max_tokens=16,
        n=2,
        cache_salt="s",
        has_media=False,
        session=b"session:abc",
        headers={"x-session-id": "abc"},
    )


SAME_CONVERSATION = [
    pytest.param(
        Api.OPENAI_CHAT,
        {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]},
        id="a chat",
    ),
    pytest.param(
        Api.ANTHROPIC_MESSAGES,
        {"system": "be kind", "messages": [{"role": "user", "content": "hi"}]},
        id="messages",
    ),
    pytest.param(Api.OPENAI_RESPONSES, {"instructions": "be kind", "input": "hi"}, id="a response"),
]


@pytest.mark.parametrize(("api", "body"), SAME_CONVERSATION)
def test_a_conversation_has_one_form_in_every_api(api: Api, body: dict[str, Any]) -> None:
    canonical = read(api, {"model": "m", **body})
    assert canonical.body == {"model": "m", **body}
    assert list(canonical.messages) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
    ]
    assert (canonical.prompts, canonical.tools, canonical.has_media) == ((), None, False)


@pytest.mark.parametrize(
    ("api", "body", "most"),
    [
        pytest.param(Api.ANTHROPIC_MESSAGES, MESSAGE, 8, id="messages"),
        pytest.param(Api.OPENAI_RESPONSES, RESPONSE | {"max_output_tokens": 9}, 9, id="a response"),
        pytest.param(Api.OPENAI_RESPONSES, RESPONSE | {"max_tokens": 9}, None, id="another name"),
        pytest.param(
            Api.OPENAI_EMBEDDINGS, EMBEDDING | {"max_tokens": 9}, 0, id="embeddings have none"
        ),
    ],
)
def test_each_api_bounds_its_output_by_its_own_name(
    api: Api, body: dict[str, Any], most: int | None
) -> None:
    assert read(api, body).max_tokens == most


@pytest.mark.parametrize("api", [Api.ANTHROPIC_MESSAGES, Api.OPENAI_RESPONSES])
def test_usage_is_forced_only_where_it_would_be_missing(api: Api) -> None:
    streamed = read(api, BASES[api] | {"stream": True})
    assert (streamed.stream, streamed.usage_asked) == (True, True)
    assert rewrite(streamed, Changes("m")) == streamed.raw


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        pytest.param("hi", ("hi",), id="one text"),
        pytest.param(["hi", "ho"], ("hi", "ho"), id="several texts"),
        pytest.param([[1], [2, 3]], (pack([1]), pack([2, 3])), id="several lists of token ids"),
    ],
)
def test_what_is_embedded_is_read_as_prompts(given: Any, prompts: tuple[Any, ...]) -> None:
    canonical = read(Api.OPENAI_EMBEDDINGS, EMBEDDING | {"input": given, "stream": True})
    assert (canonical.prompts, canonical.stream, canonical.is_chat) == (prompts, False, False)


def test_a_chat_to_embed_ends_without_an_answers_beginning() -> None:
    canonical = read(Api.OPENAI_EMBEDDINGS, CHAT)
    assert (canonical.is_chat, canonical.chat["add_generation_prompt"]) == (True, False)
    assert rewrite(canonical, Changes("m")) == canonical.raw


def test_a_continuation_names_the_response_that_it_goes_on_from() -> None:
    canonical = read(Api.OPENAI_RESPONSES, RESPONSE | {"previous_response_id": "resp_1"})
    assert (canonical.previous_response, canonical.session) == ("resp_1", b"response:resp_1")
    assert read(Api.OPENAI_CHAT, CHAT | {"previous_response_id": "x"}).previous_response is None


@pytest.mark.parametrize(
    ("api", "body", "param"),
    [
        pytest.param(Api.OPENAI_RESPONSES, {"input": 3}, "input", id="an input of no kind"),
        pytest.param(Api.OPENAI_RESPONSES, {}, "input", id="no input"),
        pytest.param(Api.OPENAI_EMBEDDINGS, {}, "input", id="nothing to embed"),
        pytest.param(Api.OPENAI_EMBEDDINGS, {"input": {}}, "input", id="an object to embed"),
        pytest.param(Api.ANTHROPIC_MESSAGES, {}, "messages", id="no messages"),
        pytest.param(
            Api.OPENAI_RESPONSES,
            {"input": "x", "previous_response_id": "x" * 300},
            "previous_response_id",
            id="an id that no engine made",
        ),
    ],
)
def test_what_routing_needs_of_other_apis_is_asked_for(
    api: Api, body: dict[str, Any], param: str
) -> None:
    refused = parse(api, {}, json.dumps({"model": "m", **body}).encode())
    assert isinstance(refused, BadRequest)
    assert refused.param == param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        pytest.param("hi", ("hi",), id="one text"),
        pytest.param("", ("",), id="an empty text may still get a start token"),
        pytest.param(["hi", "ho"], ("hi", "ho"), id="several texts"),
        pytest.param([1, 2, 4294967295], (pack([1, 2, 4294967295]),), id="token ids"),
        pytest.param([[1], [2, 3]], (pack([1]), pack([2, 3])), id="several lists of token ids"),
    ],
)
def test_a_completion_holds_one_or_several_prompts(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_a_completion_of_embeddings_has_no_prompt_to_route_by() -> None:
    assert completion(prompt=None, prompt_embeds="AAAA").prompts == ()


@pytest.mark.parametrize(
    ("content", "has_media"),
    [
        pytest.param("text", False, id="a string"),
        pytest.param(None, False, id="nothing, as beside tool calls"),
        pytest.param([{"type": "text", "text": "x"}, "y"], False, id="text parts"),
        pytest.param([{"text": "x"}], False, id="a part that is text without saying so"),
        pytest.param([{"type": "tool_reference", "name": "f"}], False, id="a deferred tool"),
        pytest.param([{"type": "image_url", "image_url": {"url": "u"}}], True, id="an image"),
        pytest.param([{"type": "input_audio", "input_audio": {}}], True, id="audio"),
        pytest.param([{"type": "hologram"}], True, id="a kind that is not known"),
        pytest.param([{"image_url": "u"}], True, id="an image without saying so"),
    ],
)
def test_media_is_noticed(content: Any, has_media: bool) -> None:
    assert chat(messages=[{"role": "user", "content": content}]).has_media is has_media


DEEP = b'{"model":"m","messages":[{"role":"user"}],"x":%s}'


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        pytest.param(b"", "the body must be valid JSON in UTF-8", None, id="no body"),
        pytest.param(b'{"model": ', "the body must be valid JSON in UTF-8", None, id="cut"),
        pytest.param(b'{"x": NaN}', "the body must be valid JSON in UTF-8", None, id="NaN"),
        pytest.param(b'{"x": 1e999}', "the body must be valid JSON in UTF-8", None, id="infinite"),
        pytest.param(
            b'{"x": %s}' % (b"9" * 5000), "the body must be valid JSON in UTF-8", None, id="huge"
        ),
        pytest.param(
            rb'{"model": "\ud800"}',
            "the body must be valid JSON in UTF-8",
            None,
            id="a lone surrogate",
        ),
        pytest.param(
            b'{"model": "\xff"}', "the body must be valid JSON in UTF-8", None, id="not UTF-8"
        ),
        pytest.param(b"[]", "the body must be a JSON object", None, id="a list"),
        pytest.param(
            DEEP % (b"[" * 20_000),
            "the body must be nested at most 128 levels deep",
            None,
            id="nested beyond the parser",
        ),
        pytest.param(
            DEEP % (b"[" * 500 + b"]" * 500),
            "the body must be nested at most 128 levels deep",
            None,
            id="nested too deeply",
        ),
        pytest.param(b"{}", "`model` must name a model", "model", id="no model"),
        pytest.param(b'{"model": 3}', "`model` must name a model", "model", id="a numeric model"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    body: bytes, message: str, param: str | None
) -> None:
    assert parse(Api.OPENAI_CHAT, {}, body) == BadRequest(message, param)


MESSAGES = "`messages` must be a list with at least one message"


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        pytest.param({"messages": None}, MESSAGES, "messages", id="no messages"),
        pytest.param({"messages": []}, MESSAGES, "messages", id="an empty chat"),
        pytest.param({"messages": "hi"}, MESSAGES, "messages", id="messages as text"),
        pytest.param(
            {"messages": ["hi"]}, "`messages[0]` must be an object", "messages", id="a bare text"
        ),
        pytest.param(
            {"messages": [{"role": "user"}, {"content": "x"}]},
            "`messages[1].role` must be a string",
            "messages",
            id="a message without role",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": 5}]},
            "`messages[0].content` must be a string or a list of content parts",
            "messages",
            id="a number as content",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [5]}]},
            "`messages[0].content[0]` must be an object with a `type`",
            "messages",
            id="a number as part",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": 1}]}]},
            "`messages[0].content[0].type` must be a string",
            "messages",
            id="a numeric type",
        ),
        pytest.param({"tools": {}}, "`tools` must be a list of objects", "tools", id="tools"),
        pytest.param({"tools": [1]}, "`tools` must be a list of objects", "tools", id="a tool"),
        pytest.param({"stream": 1}, "`stream` must be true or false", "stream", id="stream"),
        pytest.param(
            {"stream_options": [1]},
            "`stream_options` must be an object",
            "stream_options",
            id="options",
        ),
        pytest.param(
            {"stream_options": {"include_usage": "yes"}},
            "`stream_options.include_usage` must be true or false",
            "stream_options",
            id="include_usage",
        ),
        pytest.param(
            {"max_tokens": -1},
            "`max_tokens` must be a whole number of at least 0",
            "max_tokens",
            id="negative max_tokens",
        ),
        pytest.param(
            {"max_completion_tokens": "9"},
            "`max_completion_tokens` must be a whole number of at least 0",
            "max_completion_tokens",
            id="max_completion_tokens as text",
        ),
        pytest.param({"n": 0}, "`n` must be a whole number of at least 1", "n", id="n of 0"),
        pytest.param({"n": True}, "`n` must be a whole number of at least 1", "n", id="n as flag"),
        pytest.param(
            {"cache_salt": ""},
            f"`cache_salt` must be a string of 1 to {MAX_CACHE_SALT_CHARS} characters",
            "cache_salt",
            id="an empty salt",
        ),
    ],
)
def test_a_chat_with_an_unusable_field_is_refused(
    fields: dict[str, Any], message: str, param: str
) -> None:
    body = json.dumps(CHAT | fields).encode()
    assert parse(Api.OPENAI_CHAT, {}, body) == BadRequest(message, param)


IDS = "each prompt must be text or a list of at least one token id"
RANGE = "each token id must be between 0 and 4294967295"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        pytest.param(None, "`prompt` must be text, token ids, or a list of either", id="none"),
        pytest.param([], "`prompt` must be text, token ids, or a list of either", id="empty"),
        pytest.param(7, "`prompt` must be text, token ids, or a list of either", id="a number"),
        pytest.param([[]], IDS, id="an empty list of ids"),
        pytest.param([{}], IDS, id="an object"),
        pytest.param(["a", 1], IDS, id="text and ids mixed"),
        pytest.param([1, "a"], "a prompt of token ids must hold whole numbers only", id="mixed"),
        pytest.param([1, 1.5], "a prompt of token ids must hold whole numbers only", id="a half"),
        pytest.param([-1], RANGE, id="a negative id"),
        pytest.param([4294967296], RANGE, id="an id beyond uint32"),
        pytest.param([10**100], RANGE, id="an id beyond any machine"),
    ],
)
def test_a_completion_with_an_unusable_prompt_is_refused(prompt: Any, message: str) -> None:
    body = json.dumps(COMPLETION | {"prompt": prompt}).encode()
    assert parse(Api.OPENAI_COMPLETIONS, {}, body) == BadRequest(message, "prompt")


def test_the_last_of_two_equal_keys_counts_as_it_does_in_the_engine() -> None:
    body = b'{"model": "a", "model": "b", "prompt": "x"}'
    canonical = parse(Api.OPENAI_COMPLETIONS, {}, body)
    assert isinstance(canonical, Canonical)
    assert canonical.model == "b"


@pytest.mark.parametrize("case", ["error_bad_json", "error_missing_messages"])
def test_what_the_engine_refuses_for_these_is_refused_here(case: str) -> None:
    exchange = json.loads((CASES / f"{case}.json").read_text())
    body = exchange["request"]["body"]
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    assert isinstance(parse(Api.OPENAI_CHAT, {}, raw), BadRequest)


def _requests() -> list[Any]:
    apis = {
        "/v1/chat/completions": Api.OPENAI_CHAT,
        "/v1/completions": Api.OPENAI_COMPLETIONS,
    }
    found = []
    for path in sorted(CASES.glob("*.json")):
        exchange = json.loads(path.read_text())
        request = exchange.get("request", {})
        if request.get("path") in apis and exchange.get("status") == 200:
            found.append(pytest.param(apis[request["path"]], request["body"], id=path.stem))
    return found


@pytest.mark.parametrize(("api", "body"), _requests())
def test_what_the_engine_took_is_taken_here_and_passed_on_unchanged(
    api: Api, body: dict[str, Any]
) -> None:
    canonical = read(api, body)
    assert rewrite(canonical, Changes(canonical.model, meter=False)) is canonical.raw


def body_of(canonical: Canonical, model: str = "m", meter: bool = False) -> Any:
    return json.loads(rewrite(canonical, Changes(model, meter)))


def test_the_body_names_the_model_that_serves_and_keeps_the_order() -> None:
    canonical = read(Api.OPENAI_CHAT, {"z": 1.5, "model": "alias", **CHAT | {"model": "alias"}})
    assert rewrite(canonical, Changes("real")) == (
        b'{"z":1.5,"model":"real","messages":[{"role":"user","content":"hello"}]}'
    )


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        pytest.param(None, {"include_usage": True}, id="none"),
        pytest.param({}, {"include_usage": True}, id="empty"),
        pytest.param(
            {"include_usage": False, "other": 1},
            {"include_usage": True, "other": 1},
            id="declined: others stay",
        ),
        pytest.param(
            {"include_usage": True, "continuous_usage_stats": True},
            {"include_usage": True, "continuous_usage_stats": True},
            id="asked for: untouched",
        ),
        pytest.param(
            {"continuous_usage_stats": True},
            {"include_usage": True},
            id="an option that had no effect gets none",
        ),
    ],
)
def test_a_metered_stream_reports_usage(options: Any, sent: Any) -> None:
    canonical = chat(stream=True, stream_options=options)
    assert body_of(canonical, meter=True)["stream_options"] == sent
    assert body_of(canonical, meter=False)["stream_options"] == options


def test_usage_is_not_forced_on_a_plain_answer() -> None:
    assert body_of(chat(), meter=True) == CHAT


def test_keys_that_a_client_must_not_set_are_removed() -> None:
    canonical = chat(
        kv_transfer_params={"prompt_token_ids": [1]},
        ec_transfer_params={},
        priority=-5,
        request_id="x",
        vllm_xargs={"kv_cache_report_mode": "full", "session_id": "s"},
    )
    assert body_of(canonical) == CHAT | {"vllm_xargs": {"session_id": "s"}}
    assert "priority" in canonical.body


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        pytest.param({}, {"kv_cache_report_mode": "full"}, id="none"),
        pytest.param(
            {"vllm_xargs": {"session_id": "s", "kv_cache_report_mode": "delta"}},
            {"session_id": "s", "kv_cache_report_mode": "full"},
            id="others stay",
        ),
        pytest.param({"vllm_xargs": "odd"}, "odd", id="what the engine will refuse stays"),
    ],
)
def test_an_engine_is_asked_to_announce_what_it_hits(given: dict[str, Any], sent: object) -> None:
    canonical = chat(**given)
    body = json.loads(rewrite(canonical, Changes(canonical.model, meter=False, announce=True)))
    assert body["vllm_xargs"] == sent


def test_an_integer_of_any_size_survives_the_rewrite() -> None:
    assert body_of(chat(seed=10**40), model="other")["seed"] == 10**40


def test_the_deepest_body_that_is_taken_can_be_rewritten() -> None:
    depth = MAX_DEPTH - 1
    canonical = parse(Api.OPENAI_CHAT, {}, DEEP % (b"[" * depth + b"]" * depth))
    assert isinstance(canonical, Canonical)
    assert body_of(canonical, model="other")["model"] == "other"


def test_a_body_of_countless_empty_lists_is_refused_before_it_is_read() -> None:
    body = b'{"model": "m", "messages": [' + b"[]," * MAX_CONTAINERS + b"[]]}"
    refused = parse(Api.OPENAI_CHAT, {}, body)
    assert isinstance(refused, BadRequest)
    assert "at most 50000 objects and lists" in refused.message


def test_a_prompt_of_countless_token_ids_is_refused_before_it_is_read() -> None:
    body = b'{"model": "m", "prompt": [' + b"1," * (MAX_VALUES + 1) + b"1]}"
    refused = parse(Api.OPENAI_COMPLETIONS, {}, body)
    assert isinstance(refused, BadRequest)
    assert "2000000 values" in refused.message


def test_brackets_in_a_text_are_no_lists() -> None:
    code = 'if (x[0]) { y = "{\\"; }\n' * MAX_CONTAINERS
    assert isinstance(chat(messages=[{"role": "user", "content": code}]), Canonical)


@pytest.mark.parametrize(
    ("api", "fields", "skips"),
    [
        pytest.param(Api.OPENAI_CHAT, {}, False, id="a chat"),
        pytest.param(Api.OPENAI_CHAT, {"prompt_logprobs": 0}, True, id="prompt_logprobs"),
        pytest.param(Api.OPENAI_CHAT, {"echo": True, "top_logprobs": 2}, True, id="echo in a chat"),
        pytest.param(Api.OPENAI_COMPLETIONS, {"echo": True, "logprobs": 1}, True, id="echo"),
        pytest.param(Api.OPENAI_COMPLETIONS, {"echo": True}, False, id="echo of text alone"),
        pytest.param(Api.OPENAI_COMPLETIONS, {"logprobs": 1}, False, id="logprobs of the answer"),
    ],
)
def test_log_probabilities_of_the_prompt_make_engines_skip_their_cache(
    api: Api, fields: dict[str, Any], skips: bool
) -> None:
    chat_body = {"messages": [{"role": "user", "content": "x"}]}
    body = {"model": "m", **(chat_body if api is Api.OPENAI_CHAT else {"prompt": "x"}), **fields}
    canonical = parse(api, {}, json.dumps(body).encode())
    assert isinstance(canonical, Canonical)
    assert canonical.skips_cache == skips


def test_several_sequences_are_not_single() -> None:
    assert chat().is_single
    assert not chat(n=2).is_single
    several = json.dumps({"model": "m", "prompt": ["a", "b"]}).encode()
    canonical = parse(Api.OPENAI_COMPLETIONS, {}, several)
    assert isinstance(canonical, Canonical)
    assert not canonical.is_single


def test_an_endless_model_name_is_refused_and_kept_nowhere() -> None:
    body = json.dumps(CHAT | {"model": "m" * (MAX_MODEL_CHARS + 1)}).encode()
    refused = parse(Api.OPENAI_CHAT, {}, body)
    assert refused == BadRequest(f"`model` must have at most {MAX_MODEL_CHARS} characters", "model")


def test_a_conversation_keeps_its_key_over_its_turns() -> None:
    first = {"role": "user", "content": "hello"}
    turns: list[Any] = [{"role": "system", "content": "be brief"}, first]
    key = chat(messages=turns).conversation(SECRET)
    later = [*turns, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    assert len(key) == 16
    assert int(key, 16) >= 0
    assert chat(messages=later).conversation(SECRET) == key
    assert chat(messages=[{"role": "user", "content": "other"}]).conversation(SECRET) != key
    assert chat(messages=turns).conversation(b"another secret") != key


def test_the_client_may_name_its_conversation() -> None:
    by_header = chat({"x-session-id": "s1"}).conversation(SECRET)
    assert chat({"x-session-id": "s1"}, session_id="ignored").conversation(SECRET) == by_header
    assert chat(session_id="s1").conversation(SECRET) == by_header
    assert chat(previous_response_id="s1").conversation(SECRET) != by_header
    assert chat({"x-session-id": "s2"}).conversation(SECRET) != by_header


def test_a_session_header_that_is_not_text_is_a_name_like_any_other() -> None:
    assert len(chat({"x-session-id": "\udcff"}).conversation(SECRET)) == 16


def test_completions_are_told_apart_by_their_whole_prompt() -> None:
    keys = {completion(prompt=p).conversation(SECRET) for p in ("a b", "a c", [1, 2], [1, 3])}
    assert len(keys) == 4


def test_nothing_that_the_client_said_is_in_the_repr() -> None:
    canonical = chat(
        {"x-session-id": "hush-1"},
        messages=[{"role": "user", "content": "hush-2"}],
        tools=[{"x": "hush-3"}],
        cache_salt="hush-4",
    )
    assert "hush" not in repr(canonical)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = (
    *("model", "messages", "prompt", "stream", "stream_options", "max_tokens", "n", "tools"),
    *("input", "instructions", "system", "max_output_tokens", "previous_response_id"),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(BASES)), st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES))
def test_any_json_is_read_or_refused_and_never_raises(api: Api, fields: dict[str, Any]) -> None:
    raw = json.dumps(BASES[api] | fields, ensure_ascii=False).encode()
    canonical = parse(api, {}, raw)
    if isinstance(canonical, Canonical):
        assert len(canonical.conversation(SECRET)) == 16
        assert body_of(canonical, "other", meter=True)["model"] == "other"
