"""What `transformers` makes of conversations: a filter from JSON lines to digests of token ids.

Runs in an environment of its own and knows nothing of the product. Each line in holds what a
template gets, or a text; each line out is the SHA-256 of the ids as little-endian 32-bit numbers,
or `refused`. Usage: `python oracle.py DIRECTORY [TEMPLATE]`.
"""

import array
import hashlib
import json
import sys
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

REFUSALS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def main(directory: str, template: str | None = None) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    if template is not None:
        with open(template, encoding="utf-8") as file:
            tokenizer.chat_template = file.read()
    for line in sys.stdin:
        print(answer(tokenizer, json.loads(line)), flush=True)


def answer(tokenizer: Any, asked: dict[str, Any]) -> str:
    text = asked.get("text")
    if text is None:
        try:
            text = tokenizer.apply_chat_template(
                asked["messages"],
                tools=asked["tools"],
                add_generation_prompt=asked["generate"],
                continue_final_message=asked["continues"],
                tokenize=False,
                **asked["variables"],
            )
        except REFUSALS:
            return "refused"
    ids = tokenizer(text, add_special_tokens=asked["special"])["input_ids"]
    packed = array.array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return hashlib.sha256(packed.tobytes()).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
