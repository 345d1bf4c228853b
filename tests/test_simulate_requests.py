"""What a simulated engine refuses, in the words of the captures, and how it reads a body."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simulate
from simulate import replies, requests
from simulate.config import Config
from simulate.generation import Generation
from simulate.requests import Chat, Completion, Refused
from simulate.tokens import Storyteller, Tokenizer

HTTP = Path(__file__).parent / "cases" / "http"
MODEL = Path(simulate.__file__).parent / "model"


@pytest.fixture(scope="module")
def generation() -> Generation:
    """An engine of the recorded server's size."""
    tokenizer = Tokenizer(MODEL)
    return Generation(Config(max_model_len=1024), tokenizer, Storyteller(tokenizer, 0))


def run(generation: Generation, request: dict[str, Any]) -> Any:
    chat = request["path"] == "/v1/chat/completions"
    raw = request["body"]
    body = raw.encode() if isinstance(raw, str) else json.dumps(raw).encode()
    kind = request["headers"]["Content-Type"]
    if chat:
        return generation.chat(requests.parse(Chat, kind, body), request["headers"])
    return generation.completion(requests.parse(Completion, kind, body), request["headers"])


@pytest.mark.parametrize(
    "name",
    [
        "error_bad_json",
        "error_bad_temperature",
        "error_empty_cache_salt",
        "error_image_part_text_model",
        "error_max_tokens_too_large",
        "error_missing_messages",
        "error_token_out_of_vocab",
        "error_too_long_chat",
        "error_too_long_completion",
        "error_unknown_model_chat",
        "error_unknown_model_completion",
        "error_unknown_model_stream",
        "error_wrong_content_type",
        "completion_n2_logprobs",
    ],
)
def test_refusals_equal_the_recorded_ones(generation: Generation, name: str) -> None:
    recorded = json.loads((HTTP / f"{name}.json").read_text())
    with pytest.raises(Refused) as refused:
        run(generation, recorded["request"])
    assert refused.value.status == recorded["status"]
    assert replies.error(refused.value) == recorded["body"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("a text", ["a text"], id="text"),
        pytest.param(["one", "two"], ["one", "two"], id="several texts"),
        pytest.param([1, 2], [[1, 2]], id="token ids"),
        pytest.param([[1], [2, 3]], [[1], [2, 3]], id="several lists of token ids"),
    ],
)
def test_prompts_of_a_completion(prompt: Any, expected: Any) -> None:
    assert Completion(prompt=prompt).prompts() == expected


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: Completion(prompt=[]).prompts(), id="no prompt"),
        pytest.param(lambda: Completion(prompt=[[1], []]).prompts(), id="an empty prompt"),
        pytest.param(lambda: Completion(prompt=["a", 1]).prompts(), id="texts and ids mixed"),
        pytest.param(lambda: requests.check_max_tokens(0, 10), id="nothing to generate"),
        pytest.param(
            lambda: requests.check_length(8, 3, 10, from_text=True), id="no room for the answer"
        ),
        pytest.param(
            lambda: requests.check_length(10, None, 10, from_text=True), id="no room for one token"
        ),
        pytest.param(lambda: requests.check_sampling(Completion(prompt="x", n=0)), id="no choice"),
        pytest.param(
            lambda: requests.parse(Chat, "application/json", b'{"messages": 1}'), id="wrong type"
        ),
        pytest.param(lambda: requests.parse(Chat, "application/json", b"\xff"), id="no UTF-8"),
        pytest.param(lambda: requests.parse(Chat, "application/json", b"[1]"), id="no object"),
    ],
)
def test_other_refusals_are_400(call: Callable[[], object]) -> None:
    with pytest.raises(Refused) as refused:
        call()
    assert refused.value.status == 400


def test_an_answer_ends_by_itself_unless_it_must_go_on(generation: Generation) -> None:
    def lengths(**body: Any) -> tuple[int, str]:
        asked = generation.chat(Chat(messages=[{"role": "user", "content": "x"}], **body), {})
        (request,) = asked.requests
        return len(request.answer), request.finish_reason

    own, reason = lengths()
    assert (32 <= own <= 96, reason) == (True, "stop")
    assert lengths(max_tokens=6) == (6, "length")
    assert lengths(max_tokens=6, max_completion_tokens=5) == (5, "length")
    assert lengths(max_tokens=300, ignore_eos=True) == (300, "length")
    assert lengths(ignore_eos=True) == (256, "length")


def test_the_session_comes_from_the_body_then_the_header_then_the_extra_arguments() -> None:
    extra = {"session_id": "c"}
    assert Completion(prompt="x", session_id="a", vllm_xargs=extra).session("b") == "a"
    assert Completion(prompt="x", vllm_xargs=extra).session("b") == "b"
    assert Completion(prompt="x", vllm_xargs=extra).session(None) == "c"
    assert Completion(prompt="x").session(None) is None


def test_each_prompt_gets_n_answers_of_its_own(generation: Generation) -> None:
    asked = generation.completion(
        Completion(prompt=["a", "b"], n=2, max_tokens=9, temperature=1.0), {}
    )
    assert len({tuple(request.answer) for request in asked.requests}) == 4
    assert [request.prompt for request in asked.requests] == [
        prompt for prompt in asked.prompts for _ in range(2)
    ]
