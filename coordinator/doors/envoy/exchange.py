"""One request through an external-processing stream: what each message is answered with. Pure.

Takes what a gateway says, in whatever body mode it is set to, and returns what follows: answers,
the question where to send the request, and what became of it. Whoever drives it answers a
`Question` or a `Refuse` by `picked` or `rejected`, and closes the stream once `is_done`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from coordinator.doors.envoy import contract
from coordinator.doors.envoy.following import Following, Interest
from coordinator.doors.envoy.messages import (
    Answer,
    BodyMode,
    Continue,
    Effect,
    Headers,
    Immediate,
    Modes,
    Note,
    Part,
    Picked,
    Piece,
    Question,
    Refuse,
    Rejected,
    Said,
    Unseen,
)
from coordinator.refusal import BodyTooLarge, BodyTruncated
from policies.reserved import HOP_BY_HOP

PIECE_BYTES = 62_000
"""Of a body that is given back: some gateways take no message of 64 KiB."""

NEEDED = frozenset({"x-forwarded-proto"})
"""Headers of the gateway's own, without which Envoy finds no route at all."""

PASSED = Modes(BodyMode.NONE, BodyMode.NONE)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a door asks of all its exchanges."""

    body_limit_bytes: int
    interest: Interest = Interest.SERVED
    backend_header: str = "x-lineside-backend"
    """By which the gateway's routes know a provider."""
    conformance: bool = False
    """Answer the conformance suite's hooks."""


@dataclass(slots=True)
class Exchange:
    """One stream. `following` is made for each request that is sent on, to read its answer."""

    terms: Terms
    follow: Callable[[Picked], Following]
    is_done: bool = False
    """Nothing more is wanted: the stream is to be closed."""
    is_decided: bool = False
    """The client has its answer, or the request is on its way."""
    headers: Headers = field(default=(), repr=False)
    _modes: Modes = PASSED
    _subset: frozenset[str] | None = None
    _body: bytearray = field(default_factory=bytearray, repr=False)
    _asked_at: Part | None = None
    """What the last message was before the question."""
    following: Following | None = None
    _watches: bool = False

    @property
    def is_asked(self) -> bool:
        """The request is complete, and its decision was asked for."""
        return self._asked_at is not None

    def take(self, said: Said) -> Sequence[Effect]:
        """Return what follows from a message."""
        match said.part:
            case "request_headers":
                return self._begin(said)
            case "request_body":
                return self._request_body(said)
            case "request_trailers":
                return self._request_trailers()
            case _:
                return self._response(said)

    def picked(self, picked: Picked) -> Sequence[Answer | Note]:
        """Return what follows from the answer to a `Question`."""
        self.is_decided = True
        if self._asked_at == "request_headers":
            picked = replace(picked, body=None)  # there is none, or it can only be let pass
        following = self.following = self.follow(picked)
        changes = self._changes(picked)
        answers = self._sent_on(changes, picked.body)
        if not following.wants_response(self._modes.response, self._watches):
            self.is_done = following.is_done = True
            return [*answers, Unseen()]
        return answers

    def rejected(self, rejected: Rejected) -> Sequence[Answer | Note]:
        """Return what follows where the client gets its answer from here."""
        self.is_decided = self.is_done = True
        if self._watches:
            return ()
        headers = tuple(each for each in rejected.headers if each[0] not in HOP_BY_HOP)
        return (Immediate(rejected.status, headers, rejected.body, rejected.reason),)

    def left(self) -> Sequence[Note]:
        """Return what follows from the stream's end, whoever ended it."""
        self.is_done = True
        return () if self.following is None else self.following.left()

    def _begin(self, said: Said) -> Sequence[Effect]:
        self._watches = said.observes
        self._modes = said.modes or PASSED
        self._subset = contract.subset(said.metadata)
        self.headers = tuple(
            (name, value)
            for name, value in said.headers
            if name not in contract.CONTROL and name != self.terms.backend_header
        )
        if self._watches:
            decision = contract.value(said.headers, contract.DECISION)
            self.following, self.is_decided = self.follow(Picked((), decision=decision)), True
            return ()
        if said.ends:
            return (self._question("request_headers", b""),)
        if self._modes.request in (BodyMode.NONE, BodyMode.STREAMED):
            return (self._question("request_headers", None),)
        length = contract.value(said.headers, "content-length") or ""
        if length.isdecimal() and int(length) > self.terms.body_limit_bytes:
            return (self._too_large(),)
        if self._modes.request is BodyMode.DUPLEX:
            return ()  # the headers' answer goes out with what the body decides
        return (Continue("request_headers"),)

    def _request_body(self, said: Said) -> Sequence[Effect]:
        if self._watches:
            return ()
        mode = self._modes.request
        if self._asked_at is not None or self.is_decided:
            # A gateway may send its last piece twice; what passes by is passed on.
            return (Continue("request_body"),) if mode is BodyMode.STREAMED else ()
        self._body += said.body
        if len(self._body) > self.terms.body_limit_bytes:
            return (self._too_large(),)
        if mode is BodyMode.BUFFERED_PARTIAL and not said.ends:
            self._asked_at = "request_body"
            return (Refuse(BodyTruncated()),)
        if mode is BodyMode.DUPLEX and not said.ends:
            return ()
        # A buffered body is whole, also where trailers keep it from being the end.
        return (self._question("request_body", bytes(self._body)),)

    def _request_trailers(self) -> Sequence[Effect]:
        if self._watches:
            return ()
        if self._asked_at is None and self._modes.request is BodyMode.DUPLEX:
            return (self._question("request_trailers", bytes(self._body)),)
        return (Continue("request_trailers"),)

    def _response(self, said: Said) -> Sequence[Effect]:
        if self.following is None:
            # An answer of the gateway's own, to a request that it ended itself.
            self.following = self.follow(Picked(()))
            self.is_decided = True
        effects = self.following.take(said, self._modes.response, self._watches)
        self.is_done = self.is_done or self.following.is_done
        return effects

    def question(self, body: bytes | None) -> Question:
        """Return the request as a question. `None`: its body does not come by here."""
        return Question(
            method=contract.value(self.headers, ":method") or "",
            path=contract.value(self.headers, ":path") or "",
            headers=tuple(each for each in self.headers if not each[0].startswith(":")),
            body=body,
            subset=self._subset,
            readable=self._modes.response is not BodyMode.NONE,
        )

    def _question(self, at: Part, body: bytes | None) -> Question:
        self._asked_at = at
        return self.question(body)

    def _too_large(self) -> Refuse:
        self._asked_at = "request_body"
        return Refuse(BodyTooLarge(self.terms.body_limit_bytes))

    def _changes(self, picked: Picked) -> Continue:
        """Return the change of the headers, as an answer to the message that it belongs to."""
        at: Part = "request_headers"
        if self._modes.request in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL):
            at = self._asked_at or at
        destination = ",".join(picked.endpoints) or None
        sets = [*picked.set_headers]
        if destination:
            sets.append((contract.DESTINATION, destination))
        if picked.backend is not None:
            sets.append((self.terms.backend_header, picked.backend))
        if picked.body is not None:
            sets.append(("content-length", str(len(picked.body))))
        given = {name.lower() for name, _ in sets}
        ends_here = contract.CONTROL | {self.terms.backend_header, *picked.remove_headers}
        return Continue(
            at,
            set_headers=tuple(sets),
            remove_headers=tuple(sorted(ends_here - given - NEEDED)),
            destination=destination,
            reroute=True,
        )

    def _sent_on(self, changes: Continue, body: bytes | None) -> list[Answer]:
        whole = bytes(self._body) if body is None else body
        self._body.clear()  # an answer may be followed for long
        if self._modes.request is not BodyMode.DUPLEX or self._asked_at == "request_headers":
            return [replace(changes, body=body)]
        trailers = self._asked_at == "request_trailers"
        answers: list[Answer] = [changes, *_pieces(whole, not trailers)]
        return [*answers, Continue("request_trailers")] if trailers else answers


def _pieces(body: bytes, ends: bool) -> list[Piece]:
    starts = range(0, len(body), PIECE_BYTES) or range(1)
    return [
        Piece("request_body", body[at : at + PIECE_BYTES], ends and at == starts[-1])
        for at in starts
    ]
