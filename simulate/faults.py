"""What goes wrong in a simulated engine, for how long or how often.

`Faults` is written by the control surface alone. Whoever can be struck asks at the moment it
matters; nothing here acts by itself. Without a fault every question is one look at an empty list.
"""

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from lineside.clock import Clock

Where = Literal["all", "generation", "metrics", "health", "tokenize"]
_Positive = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_Natural = Annotated[int, Meta(ge=0)]


class Fault(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="fault",
    tag=lambda name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_"),
):
    """A fault lasts `for_s` seconds, or until it is cleared. Its tag is its name in JSON."""

    for_s: _Positive | None = None


class CountedFault(Fault, frozen=True, kw_only=True):
    """One that can also end by itself after it struck `count` times."""

    count: _Count | None = None


class DropBatches(CountedFault, frozen=True, kw_only=True):
    """Numbered and kept for replay, but not sent to subscribers."""

    rank: _Natural | None = None


class DuplicateBatches(CountedFault, frozen=True, kw_only=True):
    """Sent twice in a row."""

    rank: _Natural | None = None


class DelayBatches(CountedFault, frozen=True, kw_only=True):
    """Sent `delay_s` late, in order; replay has them at once."""

    delay_s: _Positive
    rank: _Natural | None = None


class ReorderBatches(CountedFault, frozen=True, kw_only=True):
    """A batch is sent after the one that follows it."""

    rank: _Natural | None = None


class MuteEvents(CountedFault, frozen=True, kw_only=True):
    """Events are lost before they get a number: nothing on the wire shows that any are missing."""

    rank: _Natural | None = None


class LoseReplies(CountedFault, frozen=True, kw_only=True):
    """A replay lacks `replies` replies after its first `after` ones; all the rest if not given."""

    after: _Natural
    replies: _Count | None = None
    end_marker: bool = True
    rank: _Natural | None = None

    def loses(self, place: int) -> bool:
        """Return whether the reply at this place, from 0, is lost."""
        return self.after <= place and (self.replies is None or place < self.after + self.replies)


class IgnoreReplays(CountedFault, frozen=True, kw_only=True):
    """A replay request gets no answer at all."""

    rank: _Natural | None = None


class OldReplayLayout(CountedFault, frozen=True, kw_only=True):
    """Replies and end marker lack the topic frame, as up to vLLM 0.25."""

    rank: _Natural | None = None


class ShrinkReplayBuffer(Fault, frozen=True, kw_only=True):
    """Only the last `steps` batches are kept; what fell out stays lost."""

    steps: _Natural
    rank: _Natural | None = None


class Freeze(Fault, frozen=True, kw_only=True):
    """No step begins: requests wait, HTTP answers."""

    rank: _Natural | None = None


class Slow(CountedFault, frozen=True, kw_only=True):
    """A step takes `factor` times as long."""

    factor: _Positive
    rank: _Natural | None = None


class Hang(CountedFault, frozen=True, kw_only=True):
    """Requests are accepted and not answered while it lasts."""

    where: Where = "all"


class FailRequests(CountedFault, frozen=True, kw_only=True):
    """Requests are answered with an error."""

    where: Where = "generation"
    status: Annotated[int, Meta(ge=400, le=599)] = 500


class DieInAnswer(CountedFault, frozen=True, kw_only=True):
    """The connection is cut after `after_chunks` chunks of a stream; before a whole answer."""

    after_chunks: _Natural = 0


class RefuseConnections(Fault, frozen=True, kw_only=True):
    """The port is closed, and so are idle connections. Nothing could end it but time."""

    for_s: _Positive


class ResetSequence(Fault, frozen=True, kw_only=True):
    """At once: numbers from 0, empty cache, empty replay buffer, no clear event. Sockets stay.

    A restart as seen by one whose connection survived it. Running requests begin again.
    """

    rank: _Natural | None = None


AnyFault = (
    DropBatches
    | DuplicateBatches
    | DelayBatches
    | ReorderBatches
    | MuteEvents
    | LoseReplies
    | IgnoreReplays
    | OldReplayLayout
    | ShrinkReplayBuffer
    | Freeze
    | Slow
    | Hang
    | FailRequests
    | DieInAnswer
    | RefuseConnections
    | ResetSequence
)

Kind = TypeVar("Kind", bound=Fault)


def name(fault: Fault | type[Fault]) -> str:
    """Return a fault's name in JSON."""
    return str(fault.__struct_config__.tag)


class _Active:
    """A fault, and when or after how many strikes it ends."""

    __slots__ = ("ends", "fault", "left")

    def __init__(self, fault: Fault, now: float) -> None:
        self.fault = fault
        self.ends = None if fault.for_s is None else now + fault.for_s
        self.left = fault.count if isinstance(fault, CountedFault) else None


class Faults:
    """The faults that are set now. One of a kind for each rank or place; a new one replaces it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: list[_Active] = []
        self.told: list[Callable[[], None]] = []
        """Called when a fault begins."""
        self.struck: dict[str, int] = {}
        """How often each fault struck, since the start."""

    def set(self, fault: Fault) -> None:
        """Begin a fault."""
        self._active = [one for one in self._active if _place(one.fault) != _place(fault)]
        self._active.append(_Active(fault, self._clock.monotonic()))
        for tell in self.told:
            tell()

    def clear(self, named: str | None = None) -> None:
        """End the faults of one name, or all."""
        self._active = [one for one in self._active if named not in (None, name(one.fault))]

    def active(self, kind: type[Kind], place: int | str | None = None) -> Kind | None:
        """Return the fault of this kind that is set for a rank or a place, if any."""
        found = self._find(kind, place)
        return None if found is None else found[1]

    def strike(self, kind: type[Kind], place: int | str | None = None) -> Kind | None:
        """Return it, and count it as having struck."""
        found = self._find(kind, place)
        if found is None:
            return None
        entry, fault = found
        self.count(fault)
        if entry.left is not None:
            entry.left -= 1
        return fault

    def lasts(self, fault: Fault) -> bool:
        """Return whether a fault that struck was neither cleared nor replaced, and has time left.

        One that has struck often enough lasts for what it struck.
        """
        self._expire()
        return any(one.fault is fault for one in self._active)

    def count(self, fault: Fault) -> None:
        """Count a strike."""
        self.struck[name(fault)] = self.struck.get(name(fault), 0) + 1

    def describe(self) -> list[dict[str, object]]:
        """Return what is set now, with what is left of it."""
        self._expire()
        now = self._clock.monotonic()
        described = []
        for one in self._active:
            if one.left == 0:
                continue
            told: dict[str, object] = msgspec.to_builtins(one.fault)
            if one.ends is not None:
                told["left_s"] = round(one.ends - now, 3)
            if one.left is not None:
                told["left"] = one.left
            described.append(told)
        return described

    def _find(self, kind: type[Kind], place: int | str | None) -> tuple[_Active, Kind] | None:
        if not self._active:
            return None
        self._expire()
        for one in self._active:
            if one.left == 0:
                continue
            if isinstance(one.fault, kind) and _place(one.fault)[1] in (None, "all", place):
                return one, one.fault
        return None

    def _expire(self) -> None:
        now = self._clock.monotonic()
        self._active = [one for one in self._active if one.ends is None or now < one.ends]


def _place(fault: Fault) -> tuple[type[Fault], object]:
    """Return what a fault is one of a kind in: its rank, or its place in HTTP, if it has either."""
    return type(fault), getattr(fault, "rank", getattr(fault, "where", None))
