"""Chat completions, whole and streamed, as neutral events. Pure.

Reads what OpenAI and the backends that took over its API write: reasoning under either name,
content as text or in pieces, calls without an index or with the same one for all.
"""

from collections.abc import Iterator

import msgspec

from coordinator.translate.events import (
    BROKEN,
    Argued,
    Began,
    Called,
    Counted,
    Done,
    Event,
    Failed,
    Said,
    Stop,
    Stopped,
    Thought,
    Tokens,
    Unreadable,
    tokens_of_prompt,
)
from coordinator.translate.frames import BrokenFrame, ServerSentEvents
from coordinator.translate.stops import FROM_CHAT
from lineside.decoding import Reader


class _Summary(msgspec.Struct):
    text: str = ""


class _Piece(msgspec.Struct):
    type: str = "text"
    text: str = ""
    summary: list[_Summary] = []


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Words(msgspec.Struct):
    """A message, or a piece of one."""

    content: str | list[_Piece] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Words | None = None
    message: _Words | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    created_cache_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None

    def read(self) -> Tokens:
        prompt = self.prompt_tokens_details or _PromptDetails()
        output = self.completion_tokens_details or _OutputDetails()
        written = prompt.cache_write_tokens
        if written is None:
            written = prompt.created_cache_tokens
        return tokens_of_prompt(
            self.prompt_tokens,
            prompt.cached_tokens,
            written,
            self.completion_tokens,
            output.reasoning_tokens,
        )


class _Error(msgspec.Struct):
    message: str | None = None
    code: int | str | None = None
    type: str | None = None


class _Answer(msgspec.Struct):
    """A completion, or a chunk of one."""

    id: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None


_ANSWER = Reader(_Answer)
_DONE = b"[DONE]"


class ChatReader:
    """Reads one answer."""

    def __init__(self) -> None:
        self.complete = False
        """Nothing is missing if the stream ends here."""
        self._frames = ServerSentEvents()
        self._began = False
        self._refused = False
        self._calls: dict[int, tuple[int, str]] = {}
        self._count = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield what became known."""
        try:
            for data in self._frames.feed(chunk):
                if data.strip() == _DONE:
                    self.complete = True
                    yield Done()
                else:
                    yield from self._read(_ANSWER.decode(data))
        except (BrokenFrame, msgspec.MsgspecError):
            yield BROKEN

    def whole(self, body: bytes) -> Iterator[Event]:
        """Yield all of an answer that was not streamed. Raises `Unreadable`."""
        try:
            answer = _ANSWER.decode(body)
        except msgspec.MsgspecError as error:
            raise Unreadable from error
        if not answer.choices or answer.error is not None:
            raise Unreadable
        yield from self._read(answer)
        yield Done()

    def close(self) -> Iterator[Event]:
        """Yield nothing: a chat says itself when it is done."""
        return iter(())

    def _read(self, answer: _Answer) -> Iterator[Event]:
        if answer.error is not None:
            yield _failure(answer.error)
            return
        if not self._began:
            self._began = True
            yield Began(answer.id)
        for choice in answer.choices:
            if choice.index == 0:
                yield from self._choice(choice)
        if answer.usage is not None:
            yield Counted(answer.usage.read())

    def _choice(self, choice: _Choice) -> Iterator[Event]:
        words = choice.delta or choice.message
        if words is not None:
            if thought := words.reasoning or words.reasoning_content:
                yield Thought(thought)
            if isinstance(words.content, str):
                yield Said(words.content)
            else:
                yield from _pieces(words.content or [])
            if words.refusal:
                self._refused = True
                yield Said(words.refusal)
            for place, call in enumerate(words.tool_calls or ()):
                yield from self._call(call, place)
        if choice.finish_reason is not None:
            why = FROM_CHAT.get(choice.finish_reason, Stop.END)
            at = choice.stop_reason if isinstance(choice.stop_reason, str) else None
            if why is Stop.END:
                why = Stop.REFUSED if self._refused else Stop.SEQUENCE if at is not None else why
            yield Stopped(why, at)

    def _call(self, call: _Call, place: int) -> Iterator[Event]:
        index = place if call.index is None else call.index
        function = call.function or _Function()
        known = self._calls.get(index)
        if known is None or (call.id and function.name and call.id != known[1]):
            if not function.name:
                yield BROKEN
                return
            key, self._count = self._count, self._count + 1
            known = self._calls[index] = key, call.id or f"call_{key}"
            yield Called(key, known[1], function.name)
        if function.arguments:
            yield Argued(known[0], function.arguments)


def _pieces(pieces: list[_Piece]) -> Iterator[Event]:
    for piece in pieces:
        if piece.type == "reasoning":
            yield Thought("".join(part.text for part in piece.summary))
        elif piece.type == "text":
            yield Said(piece.text)


def _failure(error: _Error | str) -> Failed:
    if isinstance(error, str):
        return Failed(500, error)
    if isinstance(error.code, int) and 400 <= error.code < 600:
        return Failed(error.code, error.message or "")
    named = (said for said in (error.code, error.type) if isinstance(said, str))
    status = next((_STATUS[said] for said in named if said in _STATUS), 500)
    return Failed(status, error.message or "")


_STATUS = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "rate_limit_error": 429,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
}
"""Statuses of errors that OpenAI names by a word; all others are its own fault."""
