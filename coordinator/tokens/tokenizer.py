"""A model's tokenizer directory: its chat template and its encoder, loaded once, then only read.

Safe in threads; encoding releases the interpreter. Raises no error that holds any text.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastokens
import msgspec
import tokenizers

from coordinator.canonical import Api, Canonical, parse
from coordinator.tokens import sandbox
from coordinator.tokens.rendering import RENDER_S, ChatTemplate, NotRendered, Reason
from coordinator.tokens.reuse import AddedToken, NoReuse, Reuse, Unencodable, reuse_of
from coordinator.tokens.sandbox import MAX_TEXT_CHARS
from lineside.hashing import pack

Encode = Callable[[str, bool], bytes]
"""(text, add special tokens) to packed token ids."""

REUSE_CHARS = {"fastokens": 20_000, "tokenizers": 0}
"""From where on the ids of a chat's earlier turns are used again, by encoder. Of a shorter chat the
faster one encodes all as soon as its turns are looked up."""

WARM_TEXT = "Zürich 東京 12 km: x = {1};\n\n  ok"
"""Encoded once when a tokenizer is loaded: the first text of a new encoder takes 0.3 s."""


class Unloadable(Exception):
    """The directory holds no usable tokenizer. One line, for an operator."""


class Tokenizer:
    """Turns requests into packed token ids, as an engine that serves this model does."""

    def __init__(
        self,
        template: ChatTemplate,
        encoder: str,
        encode: Encode,
        added: Sequence[AddedToken],
        doubt: str = "",
        normalizes: bool = True,
    ) -> None:
        """`added`: the tokens that the encoder finds in a text before anything else; it may
        normalize the text before it looks for some of them.
        """
        self.template = template
        self.encoder = encoder
        """`fastokens` or `tokenizers`."""
        self.doubt = doubt
        """Why an engine may tokenize otherwise than the directory says; empty: nothing known."""
        self._encode = encode
        self.reuse: Reuse | None = None
        self.no_reuse = ""
        """Why the ids of a chat's earlier turns are not used again; empty: they are."""
        try:
            turns = _few_turns(template)
            self.reuse = reuse_of(self._plain, added, turns, normalizes=normalizes)
        except NoReuse as why:
            self.no_reuse = str(why)

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
            described = msgspec.json.decode(file.read_bytes(), type=_Described)
            doubt = _doubt(path, described)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unloadable("unusable tokenizer.json") from error
        try:
            encoder, (encode, added) = "fastokens", _fast(str(file))
        except ValueError:  # a kind of tokenizer that it does not know
            encoder, (encode, added) = "tokenizers", _slow(str(file))
        encode = _careful(encode)
        try:
            encode(WARM_TEXT, False)
        except Unencodable as error:
            raise Unloadable("tokenizer.json has an encoder that fails") from error
        normalizes = described.normalizer not in _NO_NORMALIZERS
        return cls(template, encoder, encode, added, doubt, normalizes)

    def tokens(self, canonical: Canonical, seconds: float = RENDER_S) -> bytes:
        """Return a request's packed token ids, up to its first media part. Raises `NotRendered`.

        Nothing is begun once the seconds are over; the encoder itself cannot be stopped.
        """
        deadline = time.monotonic() + seconds
        is_chat = canonical.is_chat
        text = self.template.render(canonical, seconds) if is_chat else canonical.prompts[0]
        assert isinstance(text, str)  # token ids need no tokenizer
        if len(text) > MAX_TEXT_CHARS:
            raise NotRendered(Reason.TOO_LARGE)
        if time.monotonic() > deadline:
            raise NotRendered(Reason.TOO_SLOW)
        special = canonical.chat.get("add_special_tokens")
        try:
            if not is_chat if special is None else bool(special):
                return self._encode(text, True)
            if self.reuse and len(text) >= REUSE_CHARS[self.encoder]:
                return self.reuse.encode(text)
            return self._plain(text)
        except Unencodable:  # half a surrogate pair, from a tool call's JSON, say
            raise NotRendered(Reason.REFUSED) from None

    def _plain(self, text: str) -> bytes:
        return self._encode(text, False)


_UNREADABLE = (OSError, *sandbox.ERRORS)


class _Described(msgspec.Struct):
    """What a doubt can hang on in tokenizer.json; the vocabulary is skipped."""

    added_tokens: list[dict[str, Any]] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


_NO_NORMALIZERS = (None, {"type": "Sequence", "normalizers": []})


_PLAIN_CLASSES = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
"""Classes of the engine's library that take tokenizer.json as it is."""

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _doubt(directory: Path, described: _Described) -> str:
    """Return why the engine's library may not go by tokenizer.json alone; empty if it does.

    It builds most tokenizers anew by the class that the configuration names, with the vocabulary
    of the file and a normalizer and splitter of its own.
    """
    config = _config(directory)
    named = config.get("tokenizer_class")
    if (directory / "tekken.json").exists():
        return "engines may read tekken.json instead"
    if config.get("auto_map"):
        return "the model brings code of its own for tokenizing"
    if config.get("split_special_tokens"):
        return "special tokens are split when they stand in a text"
    if not _agree(described.added_tokens, config.get("added_tokens_decoder")):
        return "tokenizer_config.json describes other added tokens than tokenizer.json"
    if named in _PLAIN_CLASSES or (_is_qwen2(named) and _splits_as_qwen2(described)):
        return ""
    return "engines may rebuild the tokenizer by its class"


def _config(directory: Path) -> Mapping[str, Any]:
    file = directory / "tokenizer_config.json"
    config = msgspec.json.decode(file.read_bytes()) if file.is_file() else {}
    return config if isinstance(config, dict) else {}


def _agree(in_file: list[dict[str, Any]], in_config: Any) -> bool:
    if not isinstance(in_config, dict):
        return True
    known = {token.get("content"): token for token in in_file}
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return all(
        isinstance(token, dict)
        and (same := known.get(token.get("content"))) is not None
        and str(same.get("id")) == number
        and all(bool(same.get(flag)) == bool(token.get(flag)) for flag in flags)
        for number, token in in_config.items()
    )


def _is_qwen2(named: Any) -> bool:
    return isinstance(named, str) and named.removesuffix("Fast") == "Qwen2Tokenizer"


def _splits_as_qwen2(described: _Described) -> bool:
    steps = (described.pre_tokenizer or {}).get("pretokenizers") or [{}]
    split = steps[0].get("pattern")
    return described.normalizer == {"type": "NFC"} and split == {"Regex": _QWEN2_SPLIT}


_TURNS = [
    {"role": "user" if number % 2 == 0 else "assistant", "content": f"turn {number}"}
    for number in range(5)
]


def _few_turns(template: ChatTemplate) -> str:
    """Return a chat as this template renders it. Raises `NoReuse`."""
    asked = parse(Api.OPENAI_CHAT, {}, msgspec.json.encode({"model": "m", "messages": _TURNS}))
    assert isinstance(asked, Canonical)
    try:
        return template.render(asked)
    except NotRendered:
        raise NoReuse("no template renders a plain chat") from None


def _careful(encode: Encode) -> Encode:
    """Return an encoder that raises `Unencodable` and nothing else."""

    def careful(text: str, special: bool) -> bytes:
        try:
            return encode(text, special)
        except (TypeError, UnicodeEncodeError):  # half a surrogate pair
            raise Unencodable from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # which has no module to be had from
                raise
            raise Unencodable from None

    return careful


def _fast(file: str) -> tuple[Encode, list[AddedToken]]:
    tokenizer = fastokens.Tokenizer.from_file(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str, special: bool) -> bytes:
        ids, _ = tokenizer.encode_batch_flat([text], add_special_tokens=special)
        return bytes(ids)

    return encode, msgspec.convert(tokenizer.added_tokens(), list[AddedToken])


def _slow(file: str) -> tuple[Encode, list[AddedToken]]:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(file)
    except Exception as error:
        if type(error) is not Exception:  # the library raises the base class itself, and no other
            raise
        raise Unloadable("unusable tokenizer.json") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str, special: bool) -> bytes:
        return pack(tokenizer.encode(text, add_special_tokens=special).ids)

    added = list(tokenizer.get_added_tokens_decoder().values())
    return encode, msgspec.convert(added, list[AddedToken], from_attributes=True)
