"""What our own decisions will have put into caches before any event says so. Pure.

Written by the service alone, in the same step as the decision. Kept apart from the index: a claim
is a guess with an end, never part of a digest, its checksum or what engines' reports are held to.

    take -> settle -> expire      the prefill was seen to begin: the index has it within the grace
    take -> drop                  it failed, or its client left, before that

The claims of a group form a tree of prompts with common beginnings, so that a look-up costs a few
steps however many requests are in flight.

An engine that reports hit points serves a prompt from the end of one before it, and from no shorter
beginning of that: its claims hold at their end alone.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lineside.ids import BlockKey, EngineId, GroupId

GRACE_S = 2.0
"""From a first token on: by then the engine's events have arrived, or they will not."""

DUE_S = 3.0
"""After a first token, the events of what it had computed are overdue."""

STRIDE = 4
"""Every fourth unit key counts. The overlay's own: a coarser digest must not blunt it."""

LIMIT_KEYS = 500_000
"""Distinct keys claimed, 20 MB: a thousand cold prompts of 32k tokens. Full: no new claim is made,
and its prompt counts as held when the engine says so."""

MARKED_NODES = 1000
"""Runs of keys that `marks` looks at: what many share comes first, the rest is left."""


@dataclass(slots=True, eq=False)
class _Node:
    """A run of keys that the same claims share. `holders` counts them by engine.

    Claims that hold at their end alone are in `ends` of their last node instead.
    """

    keys: Sequence[BlockKey]
    parent: "_Node | None"
    claims: int = 0
    holders: Counter[EngineId] = field(default_factory=Counter)
    ends: Counter[EngineId] = field(default_factory=Counter)
    settled: Counter[EngineId] = field(default_factory=Counter)
    """Those of `holders` whose prompt was computed."""
    since: dict[EngineId, float] = field(default_factory=dict)
    """When the first of them was; it stays while another one follows within the grace."""
    children: dict[BlockKey, "_Node"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Claim:
    """One request's prompt on one engine. Held by the service; changed by `Overlay` only."""

    engine: EngineId
    group: GroupId
    deadline: float
    at_end: bool
    leaf: _Node = field(repr=False)


class Overlay:
    """The claims of all groups. Keys are every `STRIDE`-th unit key of a prompt."""

    def __init__(self, limit_keys: int = LIMIT_KEYS) -> None:
        self.keys = 0
        """Distinct keys claimed."""
        self.refused = 0
        """Claims that were not made because there was no room."""
        self.full = False
        """Whether the last claim was refused."""
        self._limit = limit_keys
        self._roots: dict[GroupId, _Node] = {}
        self._open: dict[Claim, None] = {}
        self._settled: deque[Claim] = deque()

    def units(self, group: GroupId, keys: Sequence[BlockKey]) -> dict[EngineId, int]:
        """Return how many leading units each engine of a group will hold; omit zeros."""
        units: dict[EngineId, int] = {}
        node, at, length = self._roots.get(group), 0, len(keys)
        while node is not None and at < length:
            node = node.children.get(keys[at])
            if node is not None:
                shared = _shared(node.keys, keys, at)
                at += shared
                units.update(dict.fromkeys(node.holders, at * STRIDE))
                if shared < len(node.keys):
                    break
                units.update(dict.fromkeys(node.ends, at * STRIDE))
        return units

    def overdue(
        self, group: GroupId, keys: Sequence[BlockKey], engine: EngineId, now: float
    ) -> int:
        """Return how many leading units an engine computed so long ago that it should have said so.

        Where the index has less, its events are late or lost: newer claims are no excuse.
        """
        node, at = self._roots.get(group), 0
        while node is not None and at < len(keys):
            child = node.children.get(keys[at])
            if child is None or child.since.get(engine, now) > now - DUE_S:
                break
            shared = _shared(child.keys, keys, at)
            at += shared
            node = child if shared == len(child.keys) else None
        return at * STRIDE

    def take(
        self,
        engine: EngineId,
        group: GroupId,
        keys: Sequence[BlockKey],
        deadline: float,
        at_end: bool = False,
    ) -> Claim | None:
        """Count keys as held by an engine. `None`: there are none, or there is no room.

        `at_end`: a prompt has to go on where these keys end, as with an engine that reports hit
        points: from what a prompt shares with this one alone it cannot be served.
        """
        if not keys:
            return None
        root = self._roots.get(group) or _Node((), None)
        node, at = _descend(root, keys)
        self.full = self.keys + len(keys) - at > self._limit
        if self.full:
            self.refused += 1
            return None
        if at < len(keys):
            node.children[keys[at]] = node = _Node(keys[at:], node)
            self.keys += len(keys) - at
        self._roots[group] = root
        claim = Claim(engine, group, deadline, at_end, node)
        self._open[claim] = None
        _count(claim, 1)
        return claim

    def settle(self, claim: Claim, now: float) -> None:
        """Let a claim end after the grace: its prompt was computed. Idempotent."""
        if claim in self._open:
            del self._open[claim]
            claim.deadline = now + GRACE_S
            self._settled.append(claim)
            _count_settled(claim, 1, now)

    def drop(self, claim: Claim) -> None:
        """End a claim that is not settled: its prompt was not computed. Idempotent."""
        if claim in self._open:
            del self._open[claim]
            self._end(claim)

    def expire(self, now: float) -> None:
        """End the settled claims whose grace is over. Cheap: it is called with every decision."""
        while self._settled and self._settled[0].deadline <= now:
            claim = self._settled.popleft()
            _count_settled(claim, -1, now)
            self._end(claim)

    def expire_lost(self, now: float) -> int:
        """End claims past their deadline that nobody settled; return how many. A safety net."""
        late = [claim for claim in self._open if claim.deadline <= now]
        for claim in late:
            self.drop(claim)
        return len(late)

    @property
    def claims(self) -> int:
        """Claims that count now."""
        return len(self._open) + len(self._settled)

    def marks(self, every: int, most: int) -> dict[EngineId, list[BlockKey]]:
        """Return, by engine, the claimed keys at every so many, those of common beginnings first.

        At most so many of an engine; of claims that hold at their end alone none.
        """
        found: dict[EngineId, list[BlockKey]] = {}
        nodes, left = deque((root, 0) for root in self._roots.values()), MARKED_NODES
        while nodes and left:
            left -= 1
            node, at = nodes.popleft()
            end = at + len(node.keys)
            depths = range(at // every * every + every, end + 1, every)
            marks = [node.keys[depth - at - 1] for depth in depths]
            for engine in node.holders if marks else ():
                of_engine = found.setdefault(engine, [])
                of_engine += marks[: most - len(of_engine)]
            nodes.extend((child, end) for child in node.children.values())
        return found

    def shown(self) -> dict[str, object]:
        """Return counts for people."""
        return {
            "claims": self.claims,
            "keys": self.keys,
            "limit_keys": self._limit,
            "full": self.full,
            "refused": self.refused,
        }

    def _end(self, claim: Claim) -> None:
        _count(claim, -1)
        node: _Node | None = claim.leaf
        while node is not None:
            if not node.claims:
                self._remove(node, claim.group)
            node = node.parent

    def _remove(self, node: _Node, group: GroupId) -> None:
        if node.parent is None:
            del self._roots[group]
        else:
            del node.parent.children[node.keys[0]]
            self.keys -= len(node.keys)


def _count(claim: Claim, by: int) -> None:
    """Count a claim in, or out, on the way from its last node to the root."""
    engine, node = claim.engine, claim.leaf
    if claim.at_end:
        _add(node.ends, engine, by)
    up: _Node | None = node
    while up is not None:
        up.claims += by
        if not claim.at_end:
            _add(up.holders, engine, by)
        up = up.parent


def _count_settled(claim: Claim, by: int, now: float) -> None:
    """Count a claim in among the settled, or out."""
    node: _Node | None = None if claim.at_end else claim.leaf
    while node is not None:
        _add(node.settled, claim.engine, by)
        if claim.engine in node.settled:
            node.since.setdefault(claim.engine, now)
        else:
            del node.since[claim.engine]
        node = node.parent


def _add(counts: Counter[EngineId], engine: EngineId, by: int) -> None:
    counts[engine] += by
    if not counts[engine]:
        del counts[engine]


def _descend(root: _Node, keys: Sequence[BlockKey]) -> tuple[_Node, int]:
    """Return the node at which the leading keys end that are known, and their number.

    A node that goes on otherwise is cut in two there.
    """
    node, at = root, 0
    while at < len(keys) and (child := node.children.get(keys[at])):
        shared = _shared(child.keys, keys, at)
        at += shared
        node = child if shared == len(child.keys) else _cut(child, shared)
    return node, at


def _cut(node: _Node, at: int) -> _Node:
    """Put the first keys of a node into a parent of its own, and return that.

    The node itself keeps its end: claims point at it.
    """
    assert node.parent is not None
    upper = _Node(node.keys[:at], node.parent, node.claims, node.holders.copy())
    upper.settled, upper.since = node.settled.copy(), node.since.copy()
    upper.children[node.keys[at]] = node
    node.parent.children[upper.keys[0]] = upper
    node.keys, node.parent = node.keys[at:], upper
    return upper


def _shared(run: Sequence[BlockKey], keys: Sequence[BlockKey], at: int) -> int:
    """Return how many of a run's keys `keys` repeats from `at` on; the first one it does.

    A key stands for all before it, so the end can be searched for by halves.
    """
    low, high = 1, min(len(run), len(keys) - at)
    if run[high - 1] == keys[at + high - 1]:
        return high
    while high - low > 1:
        middle = (low + high) >> 1
        if run[middle - 1] == keys[at + middle - 1]:
            low = middle
        else:
            high = middle
    return low
