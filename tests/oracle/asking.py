"""Conversations to the oracle and to the product, both answered as digests of token ids."""

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from coordinator.canonical import Api, Canonical, parse
from coordinator.tokens.rendering import NotRendered
from coordinator.tokens.tokenizer import Tokenizer
from tests.conversations import Conversation

REFUSED = "refused"
ORACLE = Path(__file__).with_name("oracle.py")
HOME = Path(os.environ.get("ORACLE_VENV", ".venv-oracle")).resolve()
"""The environment with `transformers`, and the tokenizers below it."""


def by_oracle(lines: Sequence[dict[str, object]], *arguments: str) -> list[str]:
    """Return what the oracle says of each line; `arguments`: a directory, perhaps a template."""
    done = subprocess.run(
        [HOME / "bin" / "python", ORACLE, *arguments],
        input="\n".join(json.dumps(line) for line in lines).encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"},
        check=True,
    )
    answers = done.stdout.decode().split()
    assert len(answers) == len(lines)
    return answers


def as_given(conversation: Conversation) -> dict[str, object]:
    """Return the oracle's line for a conversation."""
    line = asdict(conversation)
    del line["body"]
    return line


def by_product(tokenizer: Tokenizer, conversation: Conversation) -> str:
    """Return what the product makes of what the client sends."""
    return of_request(tokenizer, Api.OPENAI_CHAT, conversation.body)


def of_request(tokenizer: Tokenizer, api: Api, body: dict[str, object]) -> str:
    canonical = parse(api, {}, json.dumps(body).encode())
    assert isinstance(canonical, Canonical), canonical
    try:
        return hashlib.sha256(tokenizer.tokens(canonical)).hexdigest()
    except NotRendered:
        return REFUSED
