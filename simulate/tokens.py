"""Text to tokens and back for one simulated engine, from a model folder; invented answers.

Reads `tokenizer.json`, `chat_template.jinja` and `tokenizer_config.json` once. Holds no requests.
"""

import json
import random
import re
from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import fastokens
import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SEGMENT_CACHE_BYTES = 32 << 20
"""Chats repeat their earlier text: encoding what was seen costs half."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_LOOPS_OVER_CONTENT = re.compile(r"for\s+\w+\s+in\s+\w+(\.content|\[['\"]content['\"]\])")


class BadTemplate(Exception):
    """The chat template refused these messages, in its own words."""


class Tokenizer:
    """One model's tokenizer and template. Raises `OSError` or `ValueError` for a bad folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = fastokens.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_segment_cache(SEGMENT_CACHE_BYTES)
        self.vocabulary_size: int = self._tokenizer.vocab_size
        config = json.loads((folder / "tokenizer_config.json").read_text())
        self._special = {name: text for name in _SPECIAL_TOKENS if (text := _text(config, name))}
        self.eos: int | None = self._tokenizer.token_to_id(self._special.get("eos_token", ""))
        source = (folder / "chat_template.jinja").read_text()
        self._takes_parts = bool(_LOOPS_OVER_CONTENT.search(source))
        self._knows_developers = "developer" in source
        self._template = _environment().from_string(source)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; special tokens in it count as such, none are added."""
        packed, _ = self._tokenizer.encode_batch_flat([text])
        return array("I", packed).tolist()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def spell(self, ids: Sequence[int]) -> list[str]:
        """Return each token as the vocabulary writes it."""
        return [self._tokenizer.id_to_token(token) or "" for token in ids]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a chat. Raises `BadTemplate`."""
        plain: list[Mapping[str, Any]] = [
            {k: v for k, v in message.items() if v is not None} for message in messages
        ]
        plain = [
            m if self._takes_parts and m.get("role") != "tool" else _with_text(m) for m in plain
        ]
        if not self._knows_developers and any(m.get("role") == "developer" for m in plain):
            plain = _instructed(plain)
        if continue_final_message:
            plain = [*plain[:-1], _marked(plain[-1])]
        names = {**self._special, **(options or {})}
        names |= {"messages": plain, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._template.render(names)
            return text[: text.rindex(_MARK)] if continue_final_message else text
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise BadTemplate(str(error)) from error


class Storyteller:
    """Invents answers: words of the vocabulary, the same for the same prompt and seed.

    Token-true: encoding an answer's text gives the tokens that were generated, so that the next
    turn of a chat finds them in the cache.
    """

    MAX_WORDS = 1000

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._seed = seed
        self._eos = tokenizer.eos
        pieces = {token: tokenizer.decode([token]) for token in range(tokenizer.vocabulary_size)}
        words = [token for token, text in pieces.items() if re.fullmatch(" [a-z]{3,}", text)]
        openers = [token for token, text in pieces.items() if re.fullmatch("[A-Z][a-z]+", text)]
        self._words = [t for t in words[: self.MAX_WORDS] if _is_stable(tokenizer, pieces[t], t)]
        self._openers = [t for t in openers if tokenizer.encode(pieces[t]) == [t]] or self._words
        if not self._words:
            raise ValueError("the tokenizer's vocabulary has no plain words to answer with")
        self.pieces = {token: pieces[token] for token in {*self._words, *self._openers}}
        """Text of each token that an answer is made of."""
        if self._eos is not None:
            self.pieces[self._eos] = ""

    def length(self, prompt: Sequence[int], variant: int, low: int, high: int) -> int:
        """Return how many words the answer to `prompt` has when nothing cuts it short."""
        return self._random(prompt, variant).randint(low, high)

    def answer(
        self, prompt: Sequence[int], variant: int, count: int, *, opens: bool, ends: bool
    ) -> list[int]:
        """Return `count` tokens, the last one the end of sequence if it `ends`.

        `opens`: starts a text of its own, rather than going on after a space.
        """
        dice = self._random(prompt, variant)
        ends = ends and self._eos is not None
        tokens = dice.choices(self._words, k=count - ends)
        if opens and tokens:
            tokens[0] = dice.choice(self._openers)
        return [*tokens, self._eos] if ends and self._eos is not None else tokens

    def _random(self, prompt: Sequence[int], variant: int) -> random.Random:
        digest = sha256(array("I", prompt).tobytes()).digest()
        return random.Random(f"{self._seed} {variant} {digest.hex()}")


def _is_stable(tokenizer: Tokenizer, text: str, token: int) -> bool:
    return tokenizer.encode(text + text)[-1:] == [token] and tokenizer.encode(text) == [token]


def _text(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value["content"] if isinstance(value, dict) else value


_MARK = "<the final message ends here>"


def _marked(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the final message with a mark where its text ends, so that the prompt can stop."""
    content = message.get("content", "")
    if isinstance(content, str):
        return {**message, "content": content + _MARK}
    return {**message, "content": [*content, {"type": "text", "text": _MARK}]}


def _instructed(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a chat whose developers' and system messages are one, at its start, as vLLM does."""
    leads = [m for m in messages if m.get("role") in ("system", "developer")]
    texts = [text for m in leads if (text := _joined(m.get("content", "")))]
    rest = [m for m in messages if m.get("role") not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest]


def _with_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "content": _joined(message["content"])} if "content" in message else message


def _joined(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return "\n".join(part.get("text", "") for part in content if part.get("type") == "text")


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
