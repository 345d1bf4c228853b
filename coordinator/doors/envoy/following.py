"""An answer on its way through the gateway: who gave it, how it ended, what it used. Pure.

Passes on all that it reads. How much of that is wanted is a setting: the stream to the gateway is
open as long, and a coordinator that ends meanwhile may cut the answer off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from coordinator.doors.envoy import contract
from coordinator.doors.envoy.messages import (
    Aborted,
    BodyMode,
    Broken,
    Continue,
    Effect,
    Finished,
    FirstToken,
    Headers,
    Note,
    Part,
    Piece,
    Said,
    Served,
    Unseen,
)
from coordinator.doors.envoy.reading import Native, Reading, Unreadable
from coordinator.doors.sse import Carried
from coordinator.limits import Usage

WHOLE_BYTES = 8 * 2**20
"""Of an answer that is not streamed; a longer one is passed on unread, or cannot be translated."""

EVENTS = "text/event-stream"
STREAMS = frozenset({EVENTS, "application/vnd.amazon.eventstream"})
"""Content types of answers that come as events."""


class Interest(Enum):
    """What is wanted of an answer."""

    NONE = "none"
    """Nothing: the gateway is left alone once it knows where to send the request. Unless it wants
    bodies back: then they are passed on, unread."""
    SERVED = "served"
    """Its head: the status, and the endpoint that it comes from."""
    USAGE = "usage"
    """All of it, to count its tokens."""


@dataclass(slots=True)
class Following:
    """One answer."""

    interest: Interest
    endpoints: tuple[str, ...] = ()
    """What the gateway was told."""
    reading: Reading = field(default_factory=Native)
    decision: str | None = None
    """The record that its accounts are kept by."""
    engine: str | None = None
    """Who was to serve it, as clients see it."""
    shows_served: bool = False
    """The conformance suite wants to see where the request went."""
    is_done: bool = False
    served: str | None = None
    """The endpoint that it comes from, if it is one that the gateway was told."""
    _status: int | None = None
    _is_stream: bool = False
    _stream: Carried | None = None
    _whole: bytearray | None = field(default=None, repr=False)
    _began: bool = False
    _watches: bool = False
    _usage: Usage = field(default_factory=Usage)
    _finish: str | None = None

    def wants_response(self, mode: BodyMode, watches: bool) -> bool:
        """Whether the stream is to stay open.

        It is wherever bodies must be given back: what the gateway has sent of an answer by the
        time it hears of the end would be lost, and the client would get a shorter one.
        """
        if watches or self.interest is Interest.USAGE or mode is BodyMode.DUPLEX:
            return True
        if self.reading.is_foreign:
            return True
        return self.interest is Interest.SERVED or self.shows_served

    def take(self, said: Said, mode: BodyMode, watches: bool) -> Sequence[Effect]:
        """Return what follows from a message about the response. Raises `Unreadable`."""
        self._watches = watches
        if said.part == "response_headers":
            effects = self._head(said, mode, watches)
        elif said.part == "response_body":
            effects = self._body(said, mode)
        else:
            effects = [*self._rest(mode), Continue("response_trailers"), *self._end()]
        return [e for e in effects if not isinstance(e, Continue | Piece)] if watches else effects

    def left(self) -> Sequence[Note]:
        """Return what follows from a stream that has ended."""
        if self.is_done:
            return ()
        self.is_done = True
        if self._watches and not self._began:
            return self._unfollowed()  # perhaps no body was ever to come here
        if self._stream is not None:
            tokens = self._stream.usage.completion_tokens or self._stream.pieces
            return (Aborted(Usage(completion_tokens=tokens, partial=True)),)
        return (Aborted(Usage(partial=True)),)

    def _head(self, said: Said, mode: BodyMode, watches: bool) -> list[Effect]:
        status = contract.value(said.headers, ":status") or ""
        self._status = int(status) if status.isdecimal() else 0
        effects = self._origin(said)
        effects.append(Continue("response_headers", self._shown(said), self._untrue(said)))
        if said.ends:
            return [*effects, *self._end()]
        bodies = watches or mode is not BodyMode.NONE
        wants_bodies = self.interest is Interest.USAGE or mode is BodyMode.DUPLEX
        if not (bodies and (watches or wants_bodies or self.reading.is_foreign)):
            self.is_done = True
            return [*effects, *self._unfollowed()]
        self._read_by(_kind(said))
        return effects

    def _origin(self, said: Said) -> list[Effect]:
        """Note where the answer comes from."""
        served = contract.served(said.metadata, said.attributes)
        if served is None:
            return []
        place = self.endpoints.index(served) if served in self.endpoints else None
        if place is not None:
            self.served = served
        return [Served(served, place)]

    def _shown(self, said: Said) -> Headers:
        """Return the headers that clients see beside the backend's."""
        shown = [(contract.DECISION, self.decision)] if self.decision else []
        if self.engine is not None:
            went_on = self.served is not None and self.served != self.endpoints[0]
            shown.append((contract.ENGINE, (went_on and self.served) or self.engine))
        shown += self.reading.shown(self._status or 0)
        if self.reading.is_foreign and _kind(said) in STREAMS:
            shown.append(("content-type", EVENTS))
        served = contract.served(said.metadata, said.attributes)
        if self.shows_served and served is not None:
            shown.append((contract.SHOWN_AS, served))
        return tuple(shown)

    def _untrue(self, said: Said) -> tuple[str, ...]:
        """Return the headers that do not fit what goes on."""
        return ("content-length",) if self.reading.is_foreign else ()

    def _unfollowed(self) -> tuple[Note]:
        """Hear no more of it. An error is over: nothing is computed for it."""
        status = self._status or None
        return (Finished(status, Usage()) if status and status >= 400 else Unseen(status),)

    def _read_by(self, kind: str) -> None:
        self._is_stream = kind in STREAMS and self._status == 200
        if self.interest is not Interest.USAGE and not self.reading.is_foreign:
            return
        if self._is_stream:
            self._stream = self.reading.stream()
        else:
            self._whole = bytearray()

    def _body(self, said: Said, mode: BodyMode) -> list[Effect]:
        is_first, self._began = not self._began, True
        out, has_token = said.body, is_first and self._is_stream
        if self._stream is not None:
            out, has_token = self._read(self._stream, said)
        elif self._whole is not None:
            out = self._gather(self._whole, said)
        effects: list[Effect] = [_passed("response_body", said, out, mode)]
        if has_token:
            effects.append(FirstToken())
        return [*effects, *(self._end() if said.ends else ())]

    def _read(self, stream: Carried, said: Said) -> tuple[bytes, bool]:
        """Return what goes on, and whether the first content is in it."""
        before = stream.has_content
        out = stream.feed(said.body) if said.body else b""
        if said.ends:
            out += stream.close()
        return out, stream.has_content and not before

    def _gather(self, whole: bytearray, said: Said) -> bytes:
        """Return what goes on of an answer that is read as a whole: at once, or at its end."""
        whole += said.body
        if len(whole) > WHOLE_BYTES:
            if self.reading.is_foreign:
                raise Unreadable
            self._whole = None
        elif said.ends:
            out, self._usage, self._finish = self.reading.whole(self._status or 0, bytes(whole))
            return out if self.reading.is_foreign else said.body
        return b"" if self.reading.is_foreign else said.body

    def _rest(self, mode: BodyMode) -> list[Effect]:
        """Return what was held of an answer that trailers end."""
        if self._stream is not None:
            rest = self._stream.close()
        elif self._whole is not None:
            rest = self._gather(self._whole, Said("response_body", ends=True))
        else:
            rest = b""
        return [Piece("response_body", rest, False)] if rest and mode is BodyMode.DUPLEX else []

    def _end(self) -> list[Effect]:
        if self.is_done:
            return []
        self.is_done = True
        stream = self._stream
        if stream is None:
            return [Finished(self._status or 0, self._usage, self._finish)]
        if stream.failed or not stream.done:
            return [Broken()]
        return [Finished(self._status or 0, stream.usage, stream.finish)]


def _kind(said: Said) -> str:
    content_type = contract.value(said.headers, "content-type") or ""
    return content_type.partition(";")[0].strip().lower()


def _passed(part: Part, said: Said, out: bytes, mode: BodyMode) -> Effect:
    if mode is BodyMode.DUPLEX:
        return Piece(part, out, said.ends)
    return Continue(part, body=None if out == said.body else out)
