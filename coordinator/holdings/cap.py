"""Keeps the index within its bytes by asking agents for coarser digests. Pure.

Looks once a second, in the coordinator's chores; writes the cluster's strides and nothing else. It
never drops keys: what a digest holds is checked by its checksum, so the digest itself must shrink.

    within -> coarse (every 2nd, 4th ... of the keys asked for) -> within
                     coarse -> over   nothing is left to coarsen, or agents do not follow
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from coordinator.cluster import Cluster
from coordinator.holdings.caches import Caches, GroupSize
from lineside.ids import GroupId

MAX_FACTOR = 64
"""At a stride of 4: one key for 4,096 tokens. Beyond that overlaps say nothing."""

SETTLE_S = 15.0
"""For agents to follow and for old keys to be swept, before the next group is asked."""

QUIET_S = 60.0
"""Without a change, before a group may be finer again."""

COPY = 0.6
"""Of a group's bytes: room for its coarser copy, which fills beside the old keys. Half of the keys,
and tables that are less well filled."""

REFINE_BELOW = 0.75
"""Of the cap: what a finer group may come to. Far from where it was made coarser, so that a cluster
of a steady size is not asked back and forth."""


class State(Enum):
    """WITHIN: as configured. COARSE: a group reports fewer keys. OVER: more bytes than allowed."""

    WITHIN = "within"
    COARSE = "coarse"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Change:
    """One group's agents are asked for one in `factor` of the keys that are configured."""

    group: GroupId
    factor: int


class IndexCap:
    """One coordinator's. Of several wishes agents follow the coarsest."""

    def __init__(self, limit_bytes: int, cluster: Cluster, caches: Caches) -> None:
        self.limit_bytes = limit_bytes
        self.state = State.WITHIN
        self.factors: dict[GroupId, int] = {}
        """Groups that are coarser than configured."""
        self._cluster = cluster
        self._caches = caches
        self._changed_at = float("-inf")

    def look(self, now: float) -> Change | None:
        """Ask for coarser or finer digests where that is due; return what was asked."""
        sizes = self._caches.sizes()
        for gone in self.factors.keys() - sizes.keys():
            del self.factors[gone]
            self._cluster.coarsen(gone, 1)
        change = self._due(sizes, now)
        if change is not None:
            self._changed_at = now
            self.factors[change.group] = change.factor
            if change.factor == 1:
                del self.factors[change.group]
            self._cluster.coarsen(change.group, change.factor)
        is_over = sum(size.bytes for size in sizes.values()) > self.limit_bytes
        self.state = State.OVER if is_over else State.COARSE if self.factors else State.WITHIN
        return change

    def _due(self, sizes: Mapping[GroupId, GroupSize], now: float) -> Change | None:
        waited_s = now - self._changed_at
        if not sizes or (waited_s < SETTLE_S and not self._is_settled(sizes)):
            return None
        total = sum(size.bytes for size in sizes.values())
        if total + COPY * _most(sizes).bytes > self.limit_bytes:
            return self._coarser(sizes)
        return self._finer(sizes, total) if waited_s >= QUIET_S else None

    def _is_settled(self, sizes: Mapping[GroupId, GroupSize]) -> bool:
        """Whether every agent follows: nothing finer than what is asked for is left."""
        asked = self._cluster.strides()
        return all(
            min(size.strides, default=asked.get(group, 1)) >= asked.get(group, 1)
            for group, size in sizes.items()
        )

    def _coarser(self, sizes: Mapping[GroupId, GroupSize]) -> Change | None:
        left = [
            (size.keys, group)
            for group, size in sizes.items()
            if size.strides and self.factors.get(group, 1) < MAX_FACTOR
        ]
        if not left:
            return None
        _, group = max(left)
        return Change(group, 2 * self.factors.get(group, 1))

    def _finer(self, sizes: Mapping[GroupId, GroupSize], total: int) -> Change | None:
        """Let the smallest group that was made coarser be finer, if both its copies find room."""
        left = [(sizes[group].bytes, group) for group in self.factors]
        if not left:
            return None
        taken, group = min(left)
        if total + 2 * taken > REFINE_BELOW * self.limit_bytes:
            return None
        return Change(group, self.factors[group] // 2)

    def shown(self) -> dict[str, object]:
        """Return the cap for people."""
        return {
            "limit_bytes": self.limit_bytes,
            "state": self.state.value,
            "factors": dict(self.factors),
        }


def _most(sizes: Mapping[GroupId, GroupSize]) -> GroupSize:
    return max(sizes.values(), key=lambda size: size.keys)
