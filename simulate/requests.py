"""What a client may ask of a simulated engine: bodies parsed into values, and what is refused.

Refusals carry vLLM 0.32's own wording where a capture shows it. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from simulate import chats


@dataclass(eq=False)
class Refused(Exception):
    """A request that is answered with an error object."""

    status: int
    message: str
    type: str = "BadRequestError"
    param: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False

    @property
    def continuous(self) -> bool:
        """Whether every chunk is to carry counts."""
        return self.include_usage and self.continuous_usage_stats


class _Generation(msgspec.Struct, kw_only=True):
    """What chat and completions have in common. Unknown fields are ignored."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    session_id: str | None = None
    return_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None

    @property
    def choices(self) -> int:
        """Answers wanted to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def report_hits(self) -> bool:
        """Whether hit blocks are to be announced again."""
        return (self.vllm_xargs or {}).get("kv_cache_report_mode") == "full"

    def session(self, header: str | None) -> str | None:
        """Return the session's name: body, then header, then extra arguments."""
        named = self.session_id or header or (self.vllm_xargs or {}).get("session_id")
        return str(named) if named else None


class Chat(_Generation, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    documents: list[Any] | None = None

    def variables(self) -> dict[str, Any]:
        """Return what it sets in the chat template."""
        return chats.variables(self.chat_template_kwargs, self.reasoning_effort, self.documents)


class Completion(_Generation, kw_only=True):
    prompt: str | list[Any]

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts one by one: texts, or token ids. Raises `Refused`."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and all(isinstance(part, int) for part in self.prompt):
            return [self.prompt]
        try:
            if self.prompt and isinstance(self.prompt[0], str):
                return msgspec.convert(self.prompt, list[str])
            prompts = msgspec.convert(self.prompt, list[list[int]])
        except msgspec.ValidationError as error:
            raise _invalid(str(error), "body.prompt") from error
        if prompts and all(prompts):
            return prompts
        raise Refused(400, "Either prompt or prompt_embeds must be provided and non-empty.")


class Tokenize(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    def variables(self) -> dict[str, Any]:
        """Return what it sets in the chat template: less than a chat can."""
        return chats.variables(self.chat_template_kwargs, None, None)


class Detokenize(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


Body = TypeVar("Body", bound=msgspec.Struct)


def parse(kind: type[Body], content_type: str, raw: bytes) -> Body:
    """Return the body as `kind`. Raises `Refused`."""
    if content_type != "application/json":
        raise _invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _not_valid(kind, raw, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(raw) from error


def _not_valid(kind: type[Body], raw: bytes, error: msgspec.ValidationError) -> Refused:
    body = json.loads(raw)
    given = body if isinstance(body, dict) else {}
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in given:
            where = f"body.{field.name}"
            told = {"type": "missing", "loc": where, "msg": "Field required"}
            return _invalid(str({**told, "input": f"<dict of {len(given)} items>"}), where)
    return _invalid(str(error), None)


def _not_json(raw: bytes) -> Refused:
    try:
        json.loads(raw)
    except json.JSONDecodeError as error:
        where, why = f"body.{error.pos}", error.msg
    except UnicodeDecodeError as error:
        where, why = f"body.{error.start}", "invalid UTF-8"
    else:
        where, why = "body", "not acceptable as JSON"
    told = {"type": "json_invalid", "loc": where, "msg": "JSON decode error"}
    told |= {"input": "<dict of 0 items>"}
    return _invalid(str({**told, "ctx": {"error": why}}), where)


def _invalid(what: str, param: str | None) -> Refused:
    return Refused(400, f"1 validation error:\n  {what}", "Bad Request", param)


def check_model(name: str | None, served: Sequence[str]) -> None:
    """Refuse a model that is not served; no name means the first. Raises `Refused`."""
    if name is not None and name not in served:
        aliases = ", ".join(served)
        told = f"The model `{name}` does not exist. Valid aliases: {aliases}."
        raise Refused(404, told, "NotFoundError", "model")


def check_sampling(body: Chat | Completion) -> None:
    """Refuse sampling parameters and salts that no engine takes. Raises `Refused`."""
    if body.cache_salt == "":
        told = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise Refused(400, f"{told} (parameter=cache_salt)", param="cache_salt")
    if body.temperature is not None and body.temperature < 0:
        value = float(body.temperature)
        told = f"temperature must be non-negative, got {value}."
        raise Refused(400, f"{told} (parameter=temperature, value={value})", param="temperature")
    if body.choices < 1:
        raise Refused(400, f"n must be at least 1, got {body.choices}.")
    if body.choices > 1 and body.temperature == 0:
        raise Refused(400, f"n must be 1 when using greedy sampling, got {body.choices}.")


def check_text_only(messages: Sequence[Mapping[str, Any]], model: str) -> None:
    """Refuse parts that a text model cannot read. Raises `Refused`."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type", "text") not in chats.TEXT_KINDS:
                raise Refused(400, f"{model} is not a multimodal model")


def check_ids(ids: Sequence[int], vocabulary_size: int) -> None:
    """Refuse token ids that the model does not have. Raises `Refused`."""
    for token in ids:
        if not 0 <= token < vocabulary_size:
            raise Refused(400, f"Token id {token} is out of vocabulary")


def check_max_tokens(max_tokens: int | None, limit: int) -> None:
    """Refuse an answer length that no prompt could have. Raises `Refused`."""
    if max_tokens is None or 1 <= max_tokens <= limit:
        return
    if max_tokens < 1:
        told = f"max_tokens must be at least 1, got {max_tokens}."
    else:
        told = f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}."
        told += " Please request fewer output tokens."
    told += f" (parameter=max_tokens, value={max_tokens})"
    raise Refused(400, told, param="max_tokens")


def check_length(tokens: int, max_tokens: int | None, limit: int, *, from_text: bool) -> None:
    """Refuse a prompt that leaves no room for its answer, of one token at least.

    A text that is too long is only read up to the limit, hence "at least". Raises `Refused`.
    """
    wanted = 1 if max_tokens is None else max_tokens
    if tokens + wanted <= limit:
        return
    told = f"This model's maximum context length is {limit} tokens. However, "
    if tokens > limit:
        count, least = (limit + 1, "at least ") if from_text else (tokens, "")
        told += f"your prompt contains {least}{count} input tokens, which exceeds this limit even "
        told += "without any output tokens. Please reduce the length of the input prompt."
    else:
        count = tokens
        told += f"you requested {wanted} output tokens and your prompt contains {count} input "
        told += f"tokens, for a total of {count + wanted} tokens. Please reduce the length of the "
        told += "input prompt or the number of requested output tokens."
    told += f" (parameter=input_tokens, value={count})"
    raise Refused(400, told, param="input_tokens")
