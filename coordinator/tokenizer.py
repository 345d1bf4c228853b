"""A model's tokenizer directory: its chat template and its encoder, loaded once, then only read.

Safe in threads; encoding releases the interpreter. Raises no error that holds any text.
"""

from collections.abc import Callable
from pathlib import Path

import fastokens
import jinja2
import tokenizers

from coordinator.canonical import Api, Canonical
from coordinator.rendering import MAX_TEXT_CHARS, ChatTemplate, NotRendered, Reason
from lineside.hashing import pack

Encode = Callable[[str, bool], bytes]
"""(text, add special tokens) to packed token ids."""


class Unloadable(Exception):
    """The directory holds no usable tokenizer. One line, for an operator."""


class Tokenizer:
    """Turns requests into packed token ids, as an engine that serves this model does."""

    def __init__(self, template: ChatTemplate, encoder: str, encode: Encode) -> None:
        self.template = template
        self.encoder = encoder
        """`fastokens` or `tokenizers`."""
        self._encode = encode

    @classmethod
    def load(cls, directory: str) -> "Tokenizer":
        """Read a directory; takes seconds for a large vocabulary. Raises `Unloadable`."""
        path = Path(directory)
        try:
            template = ChatTemplate.from_directory(path)
        except _UNREADABLE as error:
            raise Unloadable(f"unusable chat template: {type(error).__name__}") from error
        file = path / "tokenizer.json"
        if not file.is_file():
            raise Unloadable("no tokenizer.json")
        try:
            return cls(template, "fastokens", _fast(str(file)))
        except ValueError:  # a kind of tokenizer that it does not know
            return cls(template, "tokenizers", _slow(str(file)))

    def tokens(self, canonical: Canonical) -> bytes:
        """Return a request's packed token ids, up to its first media part. Raises `NotRendered`."""
        is_chat = canonical.api is Api.OPENAI_CHAT
        text = self.template.render(canonical) if is_chat else canonical.prompts[0]
        assert isinstance(text, str)  # token ids need no tokenizer
        if len(text) > MAX_TEXT_CHARS:
            raise NotRendered(Reason.TOO_LARGE)
        special = canonical.body.get("add_special_tokens")
        try:
            return self._encode(text, not is_chat if special is None else bool(special))
        except (TypeError, UnicodeEncodeError):  # half a surrogate pair, from a tool call's JSON
            raise NotRendered(Reason.REFUSED) from None


_UNREADABLE = (OSError, LookupError, TypeError, ValueError, jinja2.TemplateError)


def _fast(file: str) -> Encode:
    tokenizer = fastokens.Tokenizer.from_file(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str, special: bool) -> bytes:
        ids, _ = tokenizer.encode_batch_flat([text], add_special_tokens=special)
        return bytes(ids)

    return encode


def _slow(file: str) -> Encode:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(file)
    except Exception as error:  # it raises no narrower class
        raise Unloadable("unusable tokenizer.json") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str, special: bool) -> bytes:
        return pack(tokenizer.encode(text, add_special_tokens=special).ids)

    return encode
