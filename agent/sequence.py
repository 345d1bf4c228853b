"""Where a reader is in one publisher's numbering, and what it has to ask for again. Pure.

Written by the engine's subscriber, which carries messages in and questions out; keeps no events,
only the numbers and fingerprints of the last batches.

Three facts shape it. A publisher numbers its messages from 0 in each of its lives and says nothing
else of its life; but a payload holds the time of its step, so that the same bytes under the same
number mean the same life, and other bytes another one. A replay proves nothing by ending: the
engine drops replies that do not fit its send queue, from anywhere, and may send the end marker all
the same. And a message that can neither be placed nor confirmed must not be applied: what is
reported may lack something, but never claims what the engine does not hold.

A *round* asks for replays until the reader is where the engine is: after every connect, at every
gap, at a number that came before with other bytes, and now and then while nothing comes. Every
request begins with the last number seen, whose bytes tell whether the life is still the same.
"""

from dataclasses import dataclass
from typing import TypeAlias

from agent.kv_events import Batch

RECENT = 1024
"""Batches whose fingerprints are kept. An older number that comes again is asked for once more."""

TRIES = 3
"""Requests in a row that bring nothing new before something is taken for lost."""

BACKOFF_S = 0.1
"""Before the second request that follows one without progress; doubles with each further one."""

LONG_REPLAY = 500
"""Replies to one request from which on the engine may have dropped some: it is asked again."""

AGAIN = "asking the engine again"
AWAY = "the connection to the engine's publisher is lost"
CATCHING_UP = "catching up with the engine's events"
OVERRUN = "the engine's replay buffer does not have it"
SILENT = "the engine's replay socket is silent"
UNCONFIRMED = "the engine's replay does not bring it"
NO_REPLAY = "the engine has no replay socket"


@dataclass(frozen=True, slots=True)
class Gap:
    """Batches `first` to `next - 1` did not come when they were due.

    Not `lost`: they follow, or a lost gap says which of them do not. Lost: they never will. A lost
    gap of no batches: whether this is still the same life of the engine cannot be told.
    """

    first: int
    next: int
    lost: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The engine began a new life with an empty cache; what follows is of that life."""


@dataclass(frozen=True, slots=True)
class Behind:
    """From here to the next `Whole` the engine may have done more than has been passed on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Whole:
    """All that the engine had published is passed on, and it is of one life, or said to be lost."""


Item: TypeAlias = Batch | Gap | Restarted | Behind | Whole


@dataclass(frozen=True, slots=True)
class Place:
    """The last batch that was passed on: its number, and the fingerprint of its payload."""

    seq: int
    mark: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """One message with a number. `content`: the batch, or why it cannot be read."""

    seq: int
    mark: bytes
    content: Batch | str


@dataclass(slots=True)
class _Round:
    """Requests for replays until the reader is where the engine is.

    `pending`: the live message that could not be placed. `strict`: the connection was new, so that
    without an answer the life is not known. The rest is of the request under way.
    """

    pending: Message | None = None
    strict: bool = False
    from_start: bool = False  # the engine has nothing from the last number on: look at its first
    tries: int = 0
    asked: int = 0
    proven: bool = False  # of the life that is being read
    replies: int = 0
    progress: int = 0
    beyond: int | None = None  # the first number after a hole
    over: bool = False  # what else this request brings is of no use


class Sequence:
    """One publisher's. Feed it with what happens; it returns what to pass on, in order.

    While `asks` is not `None`: request a replay from that number, feed its replies to `replied`
    and its end to `ended`, and no live message meanwhile. `replays`: whether there is a replay
    socket. `place`: where an earlier reader was, whose holdings are still at hand.
    """

    def __init__(self, replays: bool, place: Place | None = None) -> None:
        self._replays = replays
        self._next = place.seq + 1 if place else 0
        self._marks: dict[int, bytes] = {place.seq: place.mark} if place else {}
        self._round: _Round | None = None
        self._connected = False
        self._live = -1  # the last number that came by itself on this connection
        self.stale = False
        """The connection may still bring messages of an earlier life: open another one."""
        self.requests = 0
        """Replays asked for."""

    @property
    def place(self) -> Place | None:
        """The last batch passed on; `None`: none of this life."""
        mark = self._marks.get(self._next - 1)
        return None if mark is None else Place(self._next - 1, mark)

    @property
    def asks(self) -> int | None:
        """The number to ask a replay from; `None`: nothing to ask."""
        return self._round.asked if self._round else None

    @property
    def wait_s(self) -> float:
        """How long to wait before asking."""
        tries = self._round.tries if self._round else 0
        return BACKOFF_S * 2 ** (tries - 1) if tries else 0.0

    # --- what happens -----------------------------------------------------------------------------

    def connected(self) -> list[Item]:
        """Take a new connection, of whose other end nothing is known."""
        self._connected, self.stale, self._live = True, False, -1
        if self._replays:
            self._begin(_Round(strict=True))
            return [Behind(CATCHING_UP)]
        unknown = Gap(self._next, self._next, lost=True, reason=NO_REPLAY)
        return [unknown, Whole()] if self._next else [Whole()]

    def disconnected(self) -> list[Item]:
        """Take the end of a connection; what was under way is asked for after the next."""
        self._round = None
        was, self._connected = self._connected, False
        return [Behind(AWAY)] if was else []

    def check(self) -> None:
        """Ask for what may have got lost unnoticed, if nothing else is being asked."""
        if self._replays and self._connected and self._round is None:
            self._begin(_Round())

    def heard(self, message: Message) -> list[Item]:
        """Take a live message."""
        seq, before, self._live = message.seq, self._live, message.seq
        if seq == self._next:
            return [self._pass(message)]
        if seq < self._next and self._is_late(message, before):
            return []
        if not self._replays:
            return self._place_unasked(message, NO_REPLAY)
        self._begin(_Round(pending=message))
        return [] if seq < self._next else [Gap(self._next, seq, lost=False, reason=AGAIN)]

    def _is_late(self, message: Message, before: int) -> bool:
        """Tell a message that a replay has overtaken from one of another life.

        A replay brought it, or nothing did because the engine's buffer had run over; within a life
        the live numbers of a connection rise.
        """
        known = self._marks.get(message.seq)
        return self._replays and message.seq > before if known is None else known == message.mark

    def replied(self, message: Message) -> list[Item]:
        """Take a reply to the request under way."""
        now, seq = self._round, message.seq
        if now is None or now.over:
            return []
        now.replies += 1
        if not now.proven and seq < self._next:
            return self._compare(now, message)
        if seq < self._next:
            return []
        if seq == self._next and now.proven:
            now.progress += 1
            return [self._pass(message)]
        if now.proven and (now.asked < self._next or now.progress):
            now.beyond, now.over = seq, True  # a hole: the next request starts there
            return []
        # Nothing was dropped yet: the engine's buffer begins here, and tells nothing of before.
        gap = Gap(self._next, seq, lost=True, reason=OVERRUN)
        now.proven, now.progress = True, now.progress + 1
        return [gap, self._pass(message)]

    def ended(self, *, marked: bool) -> list[Item]:
        """Take the end of the request under way: its marker, or no word for too long."""
        now = self._round
        if now is None:
            return []
        if (late := now.pending) is not None and late.seq < self._next and now.proven:
            self.stale = self.stale or self._marks.get(late.seq) not in (None, late.mark)
            return self._finish()
        if now.progress:
            now.tries = 0
            whole = marked and not now.over and now.pending is None
            if whole and now.progress < LONG_REPLAY:
                return self._finish()
            return self._ask(now)
        if marked and not now.over:
            if not now.proven:
                return self._find_life(now)
            if now.pending is None:
                return self._finish()
        now.tries += 1
        return self._ask(now) if now.tries < TRIES else self._give_up(now, marked)

    # --- rounds -----------------------------------------------------------------------------------

    def _begin(self, now: _Round) -> None:
        self._round = now
        self._ask(now)

    def _ask(self, now: _Round) -> list[Item]:
        """Prepare a request: from the last number seen, whose bytes tell the life, if any."""
        last = self._next - 1
        known = last in self._marks
        now.asked = 0 if now.from_start else last if known else self._next
        now.proven = not known
        now.replies = now.progress = 0
        now.beyond, now.over = None, False
        self.requests += 1
        return []

    def _compare(self, now: _Round, message: Message) -> list[Item]:
        """Hold a reply against what had that number before."""
        known = self._marks.get(message.seq)
        if known is None:
            return []  # too long ago; a later one will tell
        if known != message.mark:
            return self._restart(now, message)
        now.proven = True
        now.over, now.from_start = now.from_start, False  # it has what it did not send before
        return []

    def _find_life(self, now: _Round) -> list[Item]:
        """Find out why a request from the last number seen brought nothing."""
        if not now.from_start and now.asked:
            now.from_start = True
            return self._ask(now)
        # None of its numbers is as high as ours, and none of ours is among them.
        return self._restart(now, None)

    def _restart(self, now: _Round, message: Message | None) -> list[Item]:
        """Begin with number 0 of another life; `message`: the reply that gave it away."""
        self._next = 0
        self._marks.clear()
        self.stale = not now.strict
        now.from_start, now.tries = False, 0
        if message is not None and message.seq == 0 and now.replies == 1:
            now.proven, now.progress = True, 1
            return [Restarted(), self._pass(message)]
        if message is None:
            self._ask(now)
        else:
            now.over, now.progress = True, 1
        return [Restarted()]

    def _finish(self) -> list[Item]:
        self._round = None
        return [Whole()]

    def _give_up(self, now: _Round, marked: bool) -> list[Item]:
        """Name what a round could not get."""
        pending = now.pending
        if now.beyond is not None:
            gap = Gap(self._next, now.beyond, lost=True, reason=UNCONFIRMED)
            self._next, now.tries = now.beyond, 0
            self._ask(now)
            return [gap]
        if pending is None:
            if not (now.strict and self._next):
                return self._finish()
            unknown = Gap(self._next, self._next, lost=True, reason=SILENT)
            return [unknown, *self._finish()]
        if not marked:
            return [*self._place_unasked(pending, SILENT), *self._finish()]
        # The engine answers and does not have it: it may be of another life, so it is not applied.
        gap = Gap(self._next, pending.seq + 1, lost=True, reason=UNCONFIRMED)
        self._seen(pending)
        return [gap, *self._finish()]

    def _place_unasked(self, message: Message, reason: str) -> list[Item]:
        """Place a live message by its number alone; one connection brings them in order."""
        items: list[Item] = []
        if message.seq < self._next:
            self._next = 0
            self._marks.clear()
            items.append(Restarted())
        if message.seq > self._next:
            items.append(Gap(self._next, message.seq, lost=True, reason=reason))
        return [*items, self._pass(message)]

    def _pass(self, message: Message) -> Item:
        self._seen(message)
        if isinstance(message.content, Batch):
            return message.content
        return Gap(message.seq, message.seq + 1, lost=True, reason=message.content)

    def _seen(self, message: Message) -> None:
        self._next = message.seq + 1
        self._marks[message.seq] = message.mark
        if len(self._marks) > RECENT:
            del self._marks[next(iter(self._marks))]
