"""Text to tokens and back for one simulated engine, from a model folder; invented answers.

Reads `tokenizer.json`, `chat_template.jinja` and `tokenizer_config.json` once. Holds no requests.
"""

import json
import random
import re
from array import array
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import fastokens
import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from simulate import chats

SEGMENT_CACHE_BYTES = 32 << 20
"""Chats repeat their earlier text: encoding what was seen costs half."""

_SPECIAL_TOKENS = tuple(
    f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)


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
        self._takes_parts = chats.takes_parts(source)
        self._knows_developers = chats.knows_developers(source)
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

    def takes_inline_system(self) -> bool:
        """Say whether the template takes system messages elsewhere than in front."""
        turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
        try:
            self.render(turns, add_generation_prompt=False)
        except BadTemplate:
            return False
        return True

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a chat; `options` are the template's variables.

        Raises `BadTemplate`.
        """
        try:
            given = chats.prepared(
                messages, parts=self._takes_parts, developers=self._knows_developers
            )
            names = {**self._special, **(options or {})}
            names["tools"] = None if tools is None else [chats.printed(tool) for tool in tools]
            names |= {"messages": given, "add_generation_prompt": add_generation_prompt}
            if continue_final_message:
                return _open_ended(self._template, names)
            return self._template.render(names)
        except _REFUSALS as error:
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


_REFUSALS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What a template raises on a chat that it was not written for."""

_MARK = "<the final message ends here> "
"""With a space at its end, which a template that trims its contents takes away."""


def _open_ended(template: jinja2.Template, names: dict[str, Any]) -> str:
    """Render up to the end of the final message: put a mark there, and cut before it."""
    if names["add_generation_prompt"]:
        raise ValueError("Cannot set both `continue_final_message` and `add_generation_prompt`")
    final = names["messages"][-1]
    if isinstance(final["content"], str):
        text = final["content"]
        final["content"] += _MARK
    else:
        last = final["content"][-1]
        text = last["text"]
        last["text"] += _MARK
    rendered = template.render(names)
    if text.strip() not in rendered:
        raise ValueError("the final message is not in the prompt")
    end = rendered.rindex(_MARK.strip())
    trims = not rendered.startswith(_MARK, end)
    return rendered[:end].rstrip() if trims else rendered[:end]


class _Marked(Extension):
    """`{% generation %}`, which marks text for training and shows nothing in a prompt."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Put the marked statements in the place of the marks."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Marked, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
