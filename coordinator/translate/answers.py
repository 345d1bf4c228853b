"""Answers of one API's backend for another API's client. The facade that relays call. Pure.

Neither clock nor randomness: what names an answer, and when it was made, is the caller's to say.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from coordinator.apis import Api
from coordinator.limits import Usage
from coordinator.translate import errors, write_anthropic, write_chat, write_responses
from coordinator.translate.collect import Answer, collected, stop_of
from coordinator.translate.events import (
    BROKEN,
    Began,
    Called,
    Counted,
    Done,
    Event,
    Failed,
    Stopped,
    Tokens,
    Unreadable,
    is_content,
)
from coordinator.translate.read_anthropic import AnthropicReader
from coordinator.translate.read_chat import ChatReader
from coordinator.translate.read_converse import ConverseReader
from coordinator.translate.stops import TO_CHAT
from coordinator.translate.write_anthropic import AnthropicWriter
from coordinator.translate.write_chat import ChatWriter, Named
from coordinator.translate.write_responses import ResponsesWriter

__all__ = ["Stream", "Unreadable", "error", "whole"]


class Reader(Protocol):
    """Reads one answer of a backend."""

    complete: bool
    """The backend said that its stream is complete."""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield what a part of a stream says."""
        ...

    def close(self) -> Iterator[Event]:
        """Yield what is left where a stream ends, or that it broke off."""
        ...

    def whole(self, body: bytes) -> Iterator[Event]:
        """Yield all of an answer that is no stream. Raises `Unreadable`."""
        ...


class Writer(Protocol):
    """Writes one stream for a client."""

    def write(self, event: Event) -> bytes:
        """Return what an event is in the client's API; often nothing. Raises `Unreadable`."""
        ...


_READERS: dict[Api, Callable[[], Reader]] = {
    Api.OPENAI_CHAT: ChatReader,
    Api.ANTHROPIC_MESSAGES: AnthropicReader,
    Api.BEDROCK_CONVERSE: ConverseReader,
}

_WRITERS: dict[Api, Callable[[Named, bool], Writer]] = {
    Api.OPENAI_CHAT: ChatWriter,
    Api.ANTHROPIC_MESSAGES: AnthropicWriter,
    Api.OPENAI_RESPONSES: ResponsesWriter,
}

_WHOLE: dict[Api, Callable[[Answer, Named], bytes]] = {
    Api.OPENAI_CHAT: write_chat.whole,
    Api.ANTHROPIC_MESSAGES: write_anthropic.whole,
    Api.OPENAI_RESPONSES: write_responses.whole,
}


def whole(
    client: Api, backend: Api, body: bytes, model: str, answer_id: str = "0", created: int = 0
) -> tuple[bytes, Usage, str | None]:
    """Return an answer in the client's shape, what it cost, and why it ended in a chat's words.

    `model`: as the client knows it. Raises `Unreadable` for what is no answer of the backend's API.
    """
    answer = collected(_READERS[backend]().whole(body))
    said = _WHOLE[client](answer, Named(model, answer_id, created))
    return said, answer.tokens.usage(), TO_CHAT[answer.stop]


def error(client: Api, backend: Api, status: int, body: bytes) -> bytes:
    """Return a backend's error in the client's shape; the provider's words only where safe."""
    return errors.of(client, status, errors.text_of(body))


def error_event(client: Api, status: int, body: bytes, data: bytes) -> bytes:
    """Return the same as a stream's last event, instead of the backend's own with that data."""
    return errors.event(client, status, errors.text_of(body), data)


def is_for_clients(status: int, body: bytes) -> bool:
    """Whether a provider's error is about the request, and names nothing of ours."""
    text = errors.text_of(body)
    return bool(text) and errors.words(status, text) == " ".join(text.split())


class Stream:
    """One stream. `feed` each chunk, send on what it returns, and call `close` at the end.

    What is returned before `has_content` only frames the answer; a relay can still drop it.
    """

    def __init__(
        self,
        client: Api,
        backend: Api,
        model: str,
        usage_asked: bool,
        answer_id: str = "0",
        created: int = 0,
    ) -> None:
        self.has_content = False
        """Content has been sent on: the first token was seen."""
        self.done = False
        """The backend said that the stream is complete."""
        self.failed = False
        """The backend sent an error, or what nobody can read."""
        self.error = b""
        """It, as the body of an answer in the client's API."""
        self.pieces = 0
        """Pieces of content that have passed, each of about one token."""
        self.usage = Usage()
        self.finish: str | None = None
        """Why generation ended, in a chat's words."""
        self.response: str | None = None
        """The id under which the backend keeps this answer: none does."""
        self._client = client
        self._reader = _READERS[backend]()
        self._writer = _WRITERS[client](Named(model, answer_id, created), usage_asked)
        self._tokens = Tokens()
        self._began = False
        self._called = False
        self._ended = False

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be sent on: whole events of the client's API."""
        if self._ended:
            return b""
        out = self._written(self._reader.feed(chunk))
        self.done = self.done or self._reader.complete
        return out

    def close(self) -> bytes:
        """Return what is left to say. Nothing, where the backend broke off."""
        return b"" if self._ended else self._written(self._reader.close())

    def _written(self, events: Iterator[Event]) -> bytes:
        out = []
        for event in self._from_its_beginning(events):
            self._note(event)
            try:
                said = self._writer.write(event)
            except Unreadable:
                self._note(BROKEN)
                said = self._writer.write(BROKEN)
            else:
                self._count(event, said)
            out.append(said)
            if self._ended:
                break
        return b"".join(out)

    def _from_its_beginning(self, events: Iterator[Event]) -> Iterator[Event]:
        """Let an answer begin, and once: some backends leave that out, others say it again."""
        for event in events:
            if isinstance(event, Began) and self._began:
                continue
            if not self._began and not isinstance(event, Began | Counted | Failed):
                yield Began()
            self._began = self._began or not isinstance(event, Counted | Failed)
            yield event

    def _count(self, event: Event, said: bytes) -> None:
        if is_content(event):
            self.has_content = self.has_content or bool(said)
            self.pieces += 1

    def _note(self, event: Event) -> None:
        match event:
            case Counted(tokens):
                self._tokens = tokens.after(self._tokens)
                self.usage = self._tokens.usage()
            case Called():
                self._called = True
            case Stopped(why):
                self.finish = TO_CHAT[stop_of(why, self._called, whole=False)]
            case Failed(status, text):
                self.failed = self._ended = True
                self.error = errors.of(self._client, status, text)
            case Done():
                self.done = self._ended = True
