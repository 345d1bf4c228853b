"""Writes what the oracle says of a few hundred conversations: `python -m tests.oracle.expect`.

The answers are kept in `tests/cases/tokens/expected.json`, so that every run of the tests holds the
product against them without the oracle. Run by `make test-tokens`' environment, when the
conversations or the templates change.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from coordinator.tokens.content_format import ContentFormat
from coordinator.tokens.rendering import ChatTemplate
from tests.conversations import Conversation, conversations
from tests.oracle.asking import as_given, by_oracle

MODEL = Path(__file__).parents[2] / "simulate" / "model"
CASES = Path(__file__).parents[1] / "cases" / "tokens"
EXPECTED = CASES / "expected.json"
MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_response>")
EACH, SEED = 120, 4


def templates() -> list[Path]:
    """Return the templates, that of the model included."""
    return [MODEL / "chat_template.jinja", *sorted((CASES / "templates").glob("*.jinja"))]


def cases(template: Path) -> Iterator[Conversation]:
    """Yield the conversations for a template."""
    chat = ChatTemplate({"default": template.read_text(encoding="utf-8")}, {})
    parts = chat.content_format is ContentFormat.PARTS
    return conversations(SEED, EACH, MARKS, tools=True, parts=parts)


def main() -> None:
    said = {
        template.stem: by_oracle([as_given(c) for c in cases(template)], str(MODEL), str(template))
        for template in templates()
    }
    short = {name: [answer[:16] for answer in answers] for name, answers in said.items()}
    EXPECTED.write_text(json.dumps(short, indent=0) + "\n")
    for name, answers in short.items():
        print(f"{name}: {len(answers)} conversations, {answers.count('refused')} refused")


if __name__ == "__main__":
    main()
