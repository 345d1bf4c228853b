"""What a gateway says on one external-processing stream, and what it is told. Types only.

As plain values, so that `exchange` can be held against whole ones; `wire` knows how they travel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

from coordinator.doors.envoy.reading import Reading
from coordinator.limits import Usage
from coordinator.refusal import Refusal

Part: TypeAlias = Literal[
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
]
"""Of a request or a response. Messages and their answers go by the same names."""

Headers: TypeAlias = Sequence[tuple[str, str]]


class BodyMode(Enum):
    """How the gateway hands a body over."""

    NONE = "none"
    """Not at all."""
    STREAMED = "streamed"
    """In pieces, each of which may be changed; the headers have gone on before them."""
    BUFFERED = "buffered"
    """As a whole."""
    BUFFERED_PARTIAL = "buffered_partial"
    """As a whole, or what fits into a buffer of it."""
    DUPLEX = "full_duplex_streamed"
    """In pieces, all of which it wants back, in pieces of any size."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What the gateway is set to, for both bodies."""

    request: BodyMode
    response: BodyMode


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a gateway."""

    part: Part
    headers: Headers = ()
    """By lower-case name. Of trailers nothing is read."""
    body: bytes = field(default=b"", repr=False)
    ends: bool = False
    """Nothing of this request, or response, follows."""
    modes: Modes | None = None
    """Only in the first message of a stream, and not even there from an observer."""
    observes: bool = False
    """The gateway waits for no answer."""
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Continue:
    """The answer to a message: go on, with these changes."""

    part: Part
    set_headers: Headers = ()
    remove_headers: Sequence[str] = ()
    body: bytes | None = field(default=None, repr=False)
    """What takes the body's place. `None`: it stays."""
    destination: str | None = None
    """For the metadata that load balancers read."""
    reroute: bool = False
    """The route is to be looked for again, by the headers as they are now."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the body that goes on, where the gateway wants bodies back."""

    part: Part
    body: bytes = field(repr=False)
    ends: bool


@dataclass(frozen=True, slots=True)
class Immediate:
    """The client's answer, which no backend gave."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)
    details: str
    """For the gateway's access log."""


Answer: TypeAlias = Continue | Piece | Immediate
"""What is sent to the gateway."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request that is to be decided. Nothing is sent until it was answered."""

    method: str
    path: str
    headers: Headers = field(repr=False)
    body: bytes | None = field(repr=False)
    """`None`: there may be one, and the gateway does not show it."""
    subset: frozenset[str] | None
    """Endpoints, or hosts with all their ports. An empty one is a constraint too."""
    readable: bool
    """Whether the answer comes by here, so that it can be changed."""


@dataclass(frozen=True, slots=True)
class Picked:
    """Where the request goes."""

    endpoints: tuple[str, ...]
    """The first, and others in order for failures. Empty: a route leads to `backend`."""
    backend: str | None = None
    """The provider that serves it; the gateway's routes know the way by this name."""
    body: bytes | None = field(default=None, repr=False)
    """`None`: as the client sent it, or not to be changed any more."""
    set_headers: Headers = field(default=(), repr=False)
    remove_headers: Sequence[str] = ()
    decision: str | None = None
    """Its record; `None`: any endpoint would have done."""
    engine: str | None = None
    """What clients are told of who serves them."""
    reading: Reading | None = field(default=None, repr=False)
    """How its answer is read. `None`: not at all."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The client's answer instead."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is not even to be decided, for this reason. Answered with a `Rejected`."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first content of the answer has come."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the gateway says of where the request went."""

    endpoint: str
    place: int | None
    """Among the endpoints that it was told; `None`: it is another one."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All of the answer was seen."""

    status: int
    usage: Usage
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine ended its stream with an error."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The stream ended before the answer did: the client left."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Unseen:
    """Nothing more will be heard of the request here."""

    status: int | None = None
    """Of its answer, whose head came by."""


Told: TypeAlias = FirstToken | Finished | Broken | Aborted | Unseen
"""What became of a request, for its accounts."""

Note: TypeAlias = Told | Served
"""What is noted of a request."""

Effect: TypeAlias = Answer | Question | Refuse | Note
"""What follows from a message."""
