"""The simulated engine's tokens: equal to the recorded ones, and answers that are token-true."""

import hashlib
import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest

import simulate
from simulate.config import Config
from simulate.generation import Generation
from simulate.requests import Chat, Refused, parse
from simulate.tokens import BadTemplate, Storyteller, Tokenizer
from tests.oracle.expect import EXPECTED, cases, templates

HTTP = Path(__file__).parent / "cases" / "http"
MODEL = Path(simulate.__file__).parent / "model"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(MODEL)


def recorded(name: str) -> Any:
    return json.loads((HTTP / f"{name}.json").read_text())


def test_tokens_of_texts_and_chats_equal_the_recorded_ones(tokenizer: Tokenizer) -> None:
    prompt, chat = recorded("tokenize_prompt"), recorded("tokenize_messages")
    tokens = tokenizer.encode(prompt["request"]["body"]["prompt"])
    assert tokens == prompt["body"]["tokens"]
    assert tokenizer.spell(tokens) == prompt["body"]["token_strs"]
    rendered = tokenizer.render(chat["request"]["body"]["messages"])
    assert tokenizer.encode(rendered) == chat["body"]["tokens"]
    both = recorded("render_chat")
    rendered = tokenizer.render(both["request"]["body"]["messages"])
    assert tokenizer.encode(rendered) == both["body"]["token_ids"]


def test_detokenized_text_equals_the_recorded_one(tokenizer: Tokenizer) -> None:
    exchange = recorded("detokenize")
    assert tokenizer.decode(exchange["request"]["body"]["tokens"]) == exchange["body"]["prompt"]


def test_text_parts_render_like_one_text(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    one, several = ({"role": "user", "content": content} for content in ("abcd", parts))
    assert tokenizer.render([one]) == tokenizer.render([several])


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
def test_tokens_of_chats_with_tools_are_those_that_the_oracle_gave(
    template: Path, tmp_path: Path
) -> None:
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    shutil.copyfile(template, tmp_path / "chat_template.jinja")
    tokenizer = Tokenizer(tmp_path)
    engine = Generation(Config(), tokenizer, Storyteller(tokenizer, 0))
    expected = json.loads(EXPECTED.read_text())[template.stem]
    assert [digest(engine, tokenizer, case.body)[:16] for case in cases(template)] == expected


def digest(engine: Generation, tokenizer: Tokenizer, body: dict[str, Any]) -> str:
    """Return what the oracle would say of the engine's tokens."""
    chat = parse(Chat, "application/json", json.dumps(body).encode())
    try:
        tokens = tokenizer.encode(engine.rendered(chat))
    except Refused:
        return "refused"
    return hashlib.sha256(array("I", tokens).tobytes()).hexdigest()


def test_a_message_without_a_role_is_a_bad_template(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadTemplate):
        tokenizer.render([{"content": "x"}])


@pytest.mark.parametrize("seed", range(20))
def test_the_next_turn_has_the_tokens_that_were_generated(tokenizer: Tokenizer, seed: int) -> None:
    teller = Storyteller(tokenizer, seed)
    messages = [{"role": "user", "content": "hello"}]
    prompt = tokenizer.encode(tokenizer.render(messages))
    answer = teller.answer(prompt, 0, 60, opens=True, ends=True)
    text = "".join(teller.pieces[token] for token in answer)
    messages.append({"role": "assistant", "content": text})
    following = tokenizer.encode(tokenizer.render(messages, add_generation_prompt=False))
    assert (len(answer), answer[-1]) == (60, tokenizer.eos)
    assert following[: len(prompt) + 60] == [*prompt, *answer]


def test_answers_depend_on_prompt_variant_and_seed_alone(tokenizer: Tokenizer) -> None:
    def answer(seed: int, prompt: list[int], variant: int) -> tuple[int, ...]:
        teller = Storyteller(tokenizer, seed)
        return tuple(teller.answer(prompt, variant, 12, opens=False, ends=False))

    cases = [(0, [1, 2], 0), (1, [1, 2], 0), (0, [1, 3], 0), (0, [1, 2], 1)]
    assert len({answer(*case) for case in cases}) == 4
    assert answer(0, [1, 2], 0) == answer(0, [1, 2], 0)
    assert len(answer(0, [1, 2], 0)) == 12
