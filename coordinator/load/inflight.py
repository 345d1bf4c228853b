"""What this coordinator has sent and not yet seen finished: load at age zero. Pure.

Written by the service alone, in the same step as the decision. A lease is released once, on
whichever path the request ends, or by its deadline; sums are integers, so they return to exactly
zero and are never negative.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

from lineside.ids import EngineId
from lineside.signals import InFlight as Word

HEAD_CREDIT = 0.95
"""A prefill under way is never credited as finished: its first token has not been seen."""

_NS = 1_000_000_000


class PeerSum(NamedTuple):
    """What other coordinators have in flight on one engine."""

    outstanding: int
    queued_tokens: int
    queued: int = 0
    """Requests without a first token."""
    wait_s: float = 0.0
    """Until their prefills are computed, as those who sent them predict."""


NO_PEERS: Mapping[EngineId, PeerSum] = MappingProxyType({})
"""A coordinator on its own."""


@dataclass(slots=True, eq=False)
class Lease:
    """One request's claim on one engine. Held by the service; changed by `InFlight` only."""

    engine: EngineId
    uncached_tokens: int
    own_ns: int
    deadline: float
    first_token_due: float | None
    queued: bool = True
    released: bool = False
    is_handed_over: bool = False
    """A gateway sends it, if it does: whether it gets on is not seen here."""


class Queue(NamedTuple):
    """One engine's load as this coordinator knows it, with its peers' sums apart."""

    outstanding: int = 0
    queued_tokens: int = 0
    wait_s: float = 0.0
    peers: PeerSum = PeerSum(0, 0)
    queued: int = 0
    """Requests without a first token."""

    def as_word(self, claimed: bytes = b"") -> Word:
        """Return our own part of it, as others are told."""
        return Word(self.outstanding, self.queued, self.queued_tokens, self.wait_s, claimed)


EMPTY = Queue()
NO_PEER = EMPTY.peers


class Loads(NamedTuple):
    """The loads of several engines at one moment, their peers' sums included, in columns."""

    outstanding: Sequence[int]
    queued: Sequence[int]
    wait_s: Sequence[float]


@dataclass(slots=True)
class _Line:
    """The leases of one engine. `queued` is in order of dispatch; its first is the head."""

    head_credit: float
    leases: dict[Lease, None] = field(default_factory=dict)
    queued: dict[Lease, None] = field(default_factory=dict)
    queued_tokens: int = 0
    queued_ns: int = 0
    most_ns: float = 0.0
    """The head's progress is credited up to this."""
    head_since: float = 0.0
    head_known: bool = True
    """Whether the head's prefill began then: not after one whose first token nobody saw."""
    next_due: float = math.inf


_IDLE = _Line(HEAD_CREDIT)
"""Of an engine with nothing in flight. Never written."""


class InFlight:
    """The leases of all engines."""

    def __init__(
        self, peers: Mapping[EngineId, PeerSum] = NO_PEERS, head_credit: float = HEAD_CREDIT
    ) -> None:
        """`head_credit`: how much of a prefill under way is credited at most; 0 for none of it."""
        self._head_credit = head_credit
        self._lines: dict[EngineId, _Line] = {}
        self._peers = peers
        self._next_due = math.inf
        """No request leaves a queue by being due before this."""

    def take(
        self,
        engine: EngineId,
        uncached_tokens: int,
        own_s: float,
        now: float,
        deadline: float,
        first_token_due: float | None = None,
    ) -> Lease:
        """Account a request on an engine.

        `first_token_due` is for requests that do not stream: their first token cannot be seen, so
        they leave the queue when it was predicted.
        """
        lease = Lease(engine, uncached_tokens, round(own_s * _NS), deadline, first_token_due)
        line = self._lines.setdefault(engine, _Line(self._head_credit))
        if not line.queued:
            line.head_since, line.head_known = now, True
            line.most_ns = line.head_credit * lease.own_ns
        line.leases[lease] = None
        line.queued[lease] = None
        line.queued_tokens += uncached_tokens
        line.queued_ns += lease.own_ns
        if first_token_due is not None:
            self._expect(line, first_token_due)
        return lease

    def hand_over(self, lease: Lease, due: float) -> None:
        """Leave a request to a gateway, which may never tell of it.

        It leaves its engine's prefill queue at `due`, if nobody says so before.
        """
        lease.is_handed_over = True
        line = self._lines.get(lease.engine)
        if line is None or not lease.queued or lease.first_token_due is not None:
            return
        lease.first_token_due = due
        self._expect(line, due)

    def _expect(self, line: _Line, due: float) -> None:
        line.next_due = min(due, line.next_due)
        self._next_due = min(due, self._next_due)

    def first_token(self, lease: Lease, now: float) -> float | None:
        """Take a request out of its engine's prefill queue. Idempotent.

        Returns the seconds that it was the queue's head, which is what its own prefill took;
        `None`: it was not, or it is not known.
        """
        line = self._lines.get(lease.engine)
        if line is None or not lease.queued:
            return None
        is_head = next(iter(line.queued)) is lease
        own_s = now - line.head_since if is_head and line.head_known else None
        _dequeue(line, lease, now)
        line.head_known = True
        return own_s

    def release(self, lease: Lease, now: float) -> None:
        """Forget a request, however it ended. Idempotent."""
        if lease.released:
            return
        lease.released = True
        line = self._lines[lease.engine]
        if lease.queued:
            _dequeue(line, lease, now)
            line.head_known = False
        del line.leases[lease]
        if not line.leases:
            del self._lines[lease.engine]

    def expire(self, now: float) -> int:
        """Release every lease past its deadline; return how many. A safety net, not a path."""
        late = [
            lease for line in self._lines.values() for lease in line.leases if lease.deadline <= now
        ]
        for lease in late:
            self.release(lease, now)
        return len(late)

    def queue(self, engine: EngineId, now: float) -> Queue:
        """Return an engine's load at this moment."""
        return self.queues((engine,), now)[0]

    def queues(self, engines: Sequence[EngineId], now: float) -> list[Queue]:
        """Return each engine's load at this moment."""
        lines, peers_of = self._lines_of(engines, now), self._peers.get
        return [
            Queue(len(of.leases), of.queued_tokens, wait_s, peers_of(name, NO_PEER), len(of.queued))
            for name, of, wait_s in zip(engines, lines, _waits_s(lines, now), strict=True)
        ]

    def loads(self, engines: Sequence[EngineId], now: float) -> Loads:
        """Return the engines' loads at this moment. The hot loop."""
        lines = self._lines_of(engines, now)
        loads = Loads(
            [len(line.leases) for line in lines],
            [len(line.queued) for line in lines],
            _waits_s(lines, now),
        )
        return _with_peers(loads, engines, self._peers) if self._peers else loads

    def _lines_of(self, engines: Sequence[EngineId], now: float) -> list[_Line]:
        lines = list(map(self._lines.get, engines, repeat(_IDLE)))
        if self._next_due <= now:
            for line in [line for line in lines if line.next_due <= now]:
                _dequeue_due(line, now)
            dues = [line.next_due for line in self._lines.values()]
            self._next_due = min(dues, default=math.inf)
        return lines

    def held(self, now: float) -> dict[EngineId, Queue]:
        """Return the load of each engine that has any of ours, at this moment."""
        engines = list(self._lines)
        return dict(zip(engines, self.queues(engines, now), strict=True))

    def watched(self, engine: EngineId) -> int:
        """Return how many requests on an engine would show here that it gets on."""
        line = self._lines.get(engine)
        return sum(not lease.is_handed_over for lease in line.leases) if line else 0

    @property
    def outstanding(self) -> int:
        """All requests in flight."""
        return sum(len(line.leases) for line in self._lines.values())


def _dequeue(line: _Line, lease: Lease, now: float) -> None:
    was_head = next(iter(line.queued)) is lease
    del line.queued[lease]
    lease.queued = False
    line.queued_tokens -= lease.uncached_tokens
    line.queued_ns -= lease.own_ns
    if was_head:
        line.head_since = now
        head = next(iter(line.queued), None)
        line.most_ns = line.head_credit * head.own_ns if head else 0.0


def _dequeue_due(line: _Line, now: float) -> None:
    for lease in list(line.queued):
        if lease.first_token_due is not None and lease.first_token_due <= now:
            # It left when it was due, not when somebody looked.
            _dequeue(line, lease, max(line.head_since, lease.first_token_due))
            line.head_known = False
    dues = [q.first_token_due for q in line.queued if q.first_token_due is not None]
    line.next_due = min(dues, default=math.inf)


def _waits_s(lines: Sequence[_Line], now: float) -> list[float]:
    """Return what each line's queue still has to compute, its head's progress credited.

    Nothing where nothing is queued: both sums are 0 then.
    """
    waits_s = []
    for line in lines:
        gone_ns, most_ns = (now - line.head_since) * _NS, line.most_ns
        credit_ns = most_ns if gone_ns > most_ns else gone_ns if gone_ns > 0.0 else 0.0
        waits_s.append((line.queued_ns - credit_ns) / _NS)
    return waits_s


def _with_peers(
    loads: Loads, engines: Sequence[EngineId], peers: Mapping[EngineId, PeerSum]
) -> Loads:
    sums = [peers.get(engine, NO_PEER) for engine in engines]
    return Loads(
        [ours + peer.outstanding for ours, peer in zip(loads.outstanding, sums, strict=True)],
        [ours + peer.queued for ours, peer in zip(loads.queued, sums, strict=True)],
        [ours + peer.wait_s for ours, peer in zip(loads.wait_s, sums, strict=True)],
    )
