"""Token ids equal those that a real engine returned for the same requests and tokenizer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.canonical import Api, Canonical, parse
from coordinator.tokens.rendering import NotRendered, Reason
from coordinator.tokens.tokenizer import Tokenizer, Unloadable
from lineside import hashing
from lineside.hashing import pack

CASES = Path(__file__).parent / "cases" / "http"
MODEL = Path(__file__).parents[1] / "simulate" / "model"
SECRET = b"the cluster's secret"
LOADED = Tokenizer.load(str(MODEL))


def request(api: Api, body: dict[str, Any]) -> Canonical:
    canonical = parse(api, {}, json.dumps(body).encode())
    assert isinstance(canonical, Canonical), canonical
    return canonical


def exchange(case: str) -> Any:
    return json.loads((CASES / f"{case}.json").read_text())


@pytest.mark.parametrize(
    ("case", "api", "ids_of"),
    [
        pytest.param("tokenize_messages", Api.OPENAI_CHAT, lambda b: b["tokens"]),
        pytest.param("tokenize_prompt", Api.OPENAI_COMPLETIONS, lambda b: b["tokens"]),
        pytest.param("chat_return_token_ids", Api.OPENAI_CHAT, lambda b: b["prompt_token_ids"]),
        pytest.param("render_chat", Api.OPENAI_CHAT, lambda b: b["token_ids"]),
        pytest.param("render_completions", Api.OPENAI_COMPLETIONS, lambda b: b[0]["token_ids"]),
    ],
)
def test_tokens_are_exactly_the_engines(
    case: str, api: Api, ids_of: Callable[[Any], list[int]]
) -> None:
    captured = exchange(case)
    tokens = LOADED.tokens(request(api, captured["request"]["body"]))
    assert tokens == pack(ids_of(captured["body"]))


@pytest.mark.parametrize("case", ["chat_first", "chat_again_cached", "completion"])
def test_the_count_is_the_one_that_the_engine_billed(case: str) -> None:
    captured = exchange(case)
    is_chat = captured["request"]["path"].endswith("chat/completions")
    api = Api.OPENAI_CHAT if is_chat else Api.OPENAI_COMPLETIONS
    count = len(LOADED.tokens(request(api, captured["request"]["body"]))) // 4
    assert count == captured["body"]["usage"]["prompt_tokens"]


def test_both_encoders_give_the_same_tokens(tmp_path: Path) -> None:
    slow = slow_copy(tmp_path)
    assert (LOADED.encoder, slow.encoder) == ("fastokens", "tokenizers")
    for text in (
        "The import statement",
        "  def f():\n\t\tpass <|im_end|>",
        "東京 e\u0301 \U0001f682",
    ):
        asked = request(Api.OPENAI_COMPLETIONS, {"model": "m", "prompt": text})
        assert slow.tokens(asked) == LOADED.tokens(asked)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(unit * (20_000 // len(unit)), id=name)
        for name, unit in {
            "spaces": " ",
            "lines": "\n",
            "letters": "a",
            "dots": ".",
            "digits": "7",
            "no-break spaces": "\u00a0",
            "marks": "e\u0301",
            "joiners": "\u200d",
            "emoji": "\U0001f469\u200d\U0001f527",
            "special tokens": "<|im_end|>",
            "cut special tokens": "<|im_",
            "nulls": "\0",
        }.items()
    ],
)
def test_texts_written_to_be_slow_are_encoded_alike(text: str, slow: Tokenizer) -> None:
    asked = request(Api.OPENAI_COMPLETIONS, {"model": "m", "prompt": text})
    assert slow.tokens(asked) == LOADED.tokens(asked)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return slow_copy(tmp_path_factory.mktemp("slow"))


@pytest.mark.parametrize(
    ("config", "doubt"),
    [
        pytest.param({"tokenizer_class": "TokenizersBackend"}, "", id="as it is"),
        pytest.param({"tokenizer_class": "PreTrainedTokenizerFast"}, "", id="as it was called"),
        pytest.param(
            {"tokenizer_class": "LlamaTokenizerFast"},
            "engines may rebuild the tokenizer by its class",
            id="a class that splits in its own way",
        ),
        pytest.param({}, "engines may rebuild the tokenizer by its class", id="no word about it"),
        pytest.param(
            {"tokenizer_class": "Qwen2Tokenizer"},
            "engines may rebuild the tokenizer by its class",
            id="Qwen's class, and another splitter",
        ),
        pytest.param(
            {"tokenizer_class": "TokenizersBackend", "split_special_tokens": True},
            "special tokens are split when they stand in a text",
            id="special tokens are text",
        ),
        pytest.param(
            {"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["x.X", None]}},
            "the model brings code of its own for tokenizing",
            id="code of its own",
        ),
        pytest.param(
            {
                "tokenizer_class": "TokenizersBackend",
                "added_tokens_decoder": {"1": {"content": "<|im_start|>", "lstrip": True}},
            },
            "tokenizer_config.json describes other added tokens than tokenizer.json",
            id="another flag of a token",
        ),
        pytest.param(
            {
                "tokenizer_class": "TokenizersBackend",
                "added_tokens_decoder": {"1": {"content": "<|im_start|>", "normalized": False}},
            },
            "",
            id="the same token",
        ),
    ],
)
def test_what_engines_may_read_otherwise_is_doubted(
    tmp_path: Path, config: dict[str, Any], doubt: str
) -> None:
    (tmp_path / "tokenizer.json").symlink_to(MODEL / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(str(tmp_path)).doubt == doubt


def test_a_file_that_engines_may_prefer_is_doubted(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tekken.json").write_text("{}")
    assert Tokenizer.load(str(tmp_path)).doubt == "engines may read tekken.json instead"


def slow_copy(directory: Path) -> Tokenizer:
    """Load the model with a detail that fastokens does not know and that changes nothing."""
    shutil.copytree(MODEL, directory, dirs_exist_ok=True)
    file = directory / "tokenizer.json"
    described = json.loads(file.read_text())
    described["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [described["pre_tokenizer"], {"type": "UnicodeScripts"}],
    }
    file.write_text(json.dumps(described))
    return Tokenizer.load(str(directory))


def test_a_text_gets_the_start_token_and_a_chat_brings_its_own(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer.json"
    described = json.loads(file.read_text())
    start = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    described["post_processor"]["single"].insert(0, start)
    described["post_processor"]["special_tokens"] = {
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
    }
    described["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    file.write_text(json.dumps(described))
    started = Tokenizer.load(str(tmp_path))
    text = {"model": "m", "prompt": "The import statement"}
    plain = pack([343, 1148, 469])
    completion, chat = Api.OPENAI_COMPLETIONS, Api.OPENAI_CHAT
    assert started.tokens(request(completion, text)) == pack([0]) + plain
    without = text | {"add_special_tokens": False}
    assert started.tokens(request(completion, without)) == plain
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    ids = LOADED.tokens(request(chat, body))
    assert started.tokens(request(chat, body)) == ids
    assert started.tokens(request(chat, body | {"add_special_tokens": True})) == pack([0]) + ids


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({}, "no tokenizer.json", id="an empty directory"),
        pytest.param({"tokenizer.json": "{"}, "unusable tokenizer.json", id="a cut file"),
        pytest.param(
            {"tokenizer_config.json": "[]"}, "unusable chat template: ValueError", id="a list"
        ),
        pytest.param(
            {"chat_template.jinja": "{% for %}"},
            "unusable chat template: TemplateSyntaxError",
            id="a broken template",
        ),
    ],
)
def test_a_directory_that_cannot_be_used_says_why(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(Unloadable, match=f"^{message}$"):
        Tokenizer.load(str(tmp_path))


def test_half_a_surrogate_pair_is_not_tokenized(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.tool_calls[0].function.arguments.a }}{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": r'{"a": "\ud800"}'}}
    body = {"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]}
    with pytest.raises(NotRendered) as raised:
        Tokenizer.load(str(tmp_path)).tokens(request(Api.OPENAI_CHAT, body))
    assert raised.value.reason is Reason.REFUSED


def test_nothing_is_encoded_out_of_time() -> None:
    asked = request(Api.OPENAI_COMPLETIONS, {"model": "m", "prompt": "x"})
    with pytest.raises(NotRendered) as raised:
        LOADED.tokens(asked, seconds=-1.0)
    assert raised.value.reason is Reason.TOO_SLOW


def test_an_oversized_prompt_is_not_encoded() -> None:
    asked = request(Api.OPENAI_COMPLETIONS, {"model": "m", "prompt": "x" * 4_000_001})
    with pytest.raises(NotRendered) as raised:
        LOADED.tokens(asked)
    assert raised.value.reason is Reason.TOO_LARGE


def test_one_conversation_has_the_same_keys_in_every_form() -> None:
    captured = exchange("chat_return_token_ids")
    chat = LOADED.tokens(request(Api.OPENAI_CHAT, captured["request"]["body"]))
    given = {"model": "m", "prompt": captured["body"]["prompt_token_ids"]}
    ids = request(Api.OPENAI_COMPLETIONS, given).prompts[0]
    assert isinstance(ids, bytes)
    parent = hashing.seed(SECRET)
    assert hashing.chain(parent, chat) == hashing.chain(parent, ids)
    assert len(hashing.chain(parent, chat)) == 126 // hashing.UNIT


def test_the_next_turn_continues_the_keys_of_the_last() -> None:
    first = [{"role": "user", "content": "list " * 40}]
    more = [*first, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    parent = hashing.seed(SECRET)
    short, long = (
        hashing.chain(
            parent, LOADED.tokens(request(Api.OPENAI_CHAT, {"model": "m", "messages": m}))
        )
        for m in (first, more)
    )
    shared = len(short) - 1  # the last unit may hold the prompt for an answer
    assert long[:shared] == short[:shared]


def test_adapters_and_salts_share_no_key() -> None:
    captured = exchange("chat_return_token_ids")
    tokens = LOADED.tokens(request(Api.OPENAI_CHAT, captured["request"]["body"]))
    seeds = [
        hashing.seed(SECRET, lora, salt)
        for lora in (None, "sql", "legal")
        for salt in (None, "tenant-a", "tenant-b")
    ]
    keys = [key for seed in seeds for key in hashing.chain(seed, tokens)]
    assert len(set(keys)) == len(keys) == 9 * (126 // hashing.UNIT)
