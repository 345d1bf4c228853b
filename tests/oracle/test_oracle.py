"""Token ids equal those of `transformers` for thousands of random conversations.

`make test-tokens` installs what it needs and runs it: `CONVERSATIONS` with each, else 5,000.
"""

import contextlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.canonical import Api, Canonical, parse
from coordinator.engines import Engine, ServedModel
from coordinator.tokens.content_format import ContentFormat
from coordinator.tokens.probes import probes
from coordinator.tokens.rendering import NotRendered
from coordinator.tokens.reuse import reuse_of
from coordinator.tokens.tokenizer import Tokenizer, _fast, _few_turns, _slow
from lineside.ids import EngineId, GroupId, ModelName, NodeId
from tests.conversations import conversations
from tests.oracle.asking import (
    HOME,
    REFUSED,
    as_given,
    by_oracle,
    by_product,
    of_request,
)
from tests.oracle.expect import EXPECTED, MODEL, cases, templates

pytestmark = pytest.mark.oracle

COUNT = int(os.environ.get("CONVERSATIONS", "5000"))
SEED = int(os.environ.get("SEED", "1"))
MARKS = 60
"""So many of a tokenizer's special tokens are written into texts; some have hundreds."""


def folder(name: str) -> Path:
    path = HOME / "tokenizers" / name
    assert (path / "tokenizer.json").is_file(), "run `make test-tokens`"
    return path


def marks(path: Path) -> list[str]:
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    spelt = [token["content"] for token in added]
    return random.Random(1).sample(spelt, min(MARKS, len(spelt)))


@pytest.mark.parametrize(
    ("name", "tools", "doubtful"),
    [
        pytest.param("qwen3", True, False, id="qwen3"),
        pytest.param("deepseek_v3", True, True, id="deepseek_v3"),
        pytest.param("llama3_1", False, False, id="llama3_1"),
    ],
)
def test_token_ids_are_the_oracles(name: str, tools: bool, doubtful: bool) -> None:
    path = folder(name)
    tokenizer = Tokenizer.load(str(path))
    assert (tokenizer.encoder, bool(tokenizer.doubt)) == ("fastokens", doubtful)
    assert tokenizer.no_reuse == ""
    parts = tokenizer.template.content_format is ContentFormat.PARTS
    asked = list(conversations(SEED, COUNT, marks(path), tools=tools, parts=parts))
    theirs = by_oracle([as_given(one) for one in asked], str(path))
    ours = [by_product(tokenizer, one) for one in asked]
    seen = Counter(
        "both refuse" if mine == other == REFUSED else "equal" if mine == other else "different"
        for mine, other in zip(ours, theirs, strict=True)
    )
    print(f"\n{name}: {COUNT} conversations, {dict(seen)}")
    assert seen["different"] == 0
    assert seen["equal"] > 0.98 * COUNT


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "llama3_1"])
@pytest.mark.parametrize("encoder", [_fast, _slow])
def test_turns_that_are_reused_are_the_whole_chats(name: str, encoder: Callable[..., Any]) -> None:
    """Of growing chats, and of chats that are pieces of each other, with both encoders."""
    path, rng = folder(name), random.Random(SEED)
    template = Tokenizer.load(str(path)).template
    encode, added = encoder(str(path / "tokenizer.json"))
    normalizes = name != "deepseek_v3"  # its normalizer is none, as the product sees
    whole = partial(encode, special=False)
    reuse = reuse_of(whole, added, _few_turns(template), limit=2**20, normalizes=normalizes)
    parts = template.content_format is ContentFormat.PARTS
    texts = []
    for one in conversations(SEED + 2, COUNT // 5, marks(path), tools=False, parts=parts):
        canonical = parse(Api.OPENAI_CHAT, {}, json.dumps(one.body).encode())
        assert isinstance(canonical, Canonical)
        with contextlib.suppress(NotRendered):
            texts.append(template.render(canonical))
    for number, text in enumerate(texts):
        grown = text + "".join(rng.sample(texts[: number + 1], min(number, rng.randrange(4))))
        for asked in (text, grown, grown[: rng.randrange(1, len(grown) + 1)]):
            assert reuse.encode(asked) == whole(asked)
    counted = reuse.counts()
    print(f"\n{name}: {len(texts)} chats, {counted}")
    assert counted.reused_tokens > counted.encoded_tokens / 4
    assert counted.kept_bytes <= 2**20


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "llama3_1"])
def test_texts_get_the_oracles_start_tokens(name: str) -> None:
    path = folder(name)
    tokenizer = Tokenizer.load(str(path))
    texts = [
        text
        for one in conversations(SEED + 1, 300, marks(path), tools=False, parts=False)
        for message in one.messages
        if (text := message["content"])
    ]
    theirs = by_oracle([{"text": text, "special": True} for text in texts], str(path))
    ours = [
        of_request(tokenizer, Api.OPENAI_COMPLETIONS, {"model": "m", "prompt": text})
        for text in texts
    ]
    assert ours == theirs


def test_a_tokenizer_that_the_library_rebuilds_is_doubted_and_seen_by_the_probes(
    tmp_path: Path,
) -> None:
    """Without its config.json the library takes DeepSeek's for a Llama's and splits otherwise."""
    shutil.copytree(folder("deepseek_v3"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").unlink()
    tokenizer = Tokenizer.load(str(tmp_path))
    assert tokenizer.doubt
    engine = Engine(
        id=EngineId("a:1"),
        base_url="http://127.0.0.1:1",
        endpoint="a:1",
        group=GroupId("g"),
        models=(ServedModel(ModelName("m")),),
        node=NodeId("n"),
    )
    bodies = [probe.body for probe in probes(Api.OPENAI_COMPLETIONS, engine)]
    theirs = by_oracle([{"text": b["prompt"], "special": True} for b in bodies], str(tmp_path))
    ours = [of_request(tokenizer, Api.OPENAI_COMPLETIONS, dict(body)) for body in bodies]
    assert sum(mine != other for mine, other in zip(ours, theirs, strict=True)) >= 4


def test_the_kept_answers_are_the_oracles() -> None:
    kept = json.loads(EXPECTED.read_text())
    for template in templates():
        said = by_oracle([as_given(c) for c in cases(template)], str(MODEL), str(template))
        assert [answer[:16] for answer in said] == kept[template.stem]
