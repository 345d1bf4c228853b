"""Deletion costs of pods: which are to be written now, from what engines are worth. Pure.

A ReplicaSet that shrinks takes the pod with the lowest cost first. Each write is a new revision of
the pod that everybody who watches pods gets to see, so they are few: only what has changed by
enough, one pod once in a while, so many at a time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lineside.ids import PodIdent

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

IN_FLIGHT_TOKENS = 1_000
"""What a request in flight adds: it is broken off with its pod, and computed again elsewhere."""

MOST = 2**31 - 1
"""Kubernetes reads it as a 32-bit number."""

SHARE = 0.2
"""Of the cost before, that a change has to reach."""

LEAST = 1_000
"""Tokens that it has to reach in any case."""

AGAIN_S = 60.0
"""Between two writes to a pod."""

AT_ONCE = 10
"""Writes in a round; those that change the most come first."""


@dataclass(slots=True)
class Costs:
    """What was written, by the one who writes."""

    _written: dict[PodIdent, tuple[int, float]] = field(default_factory=dict)
    """The cost, and when."""

    def due(self, wanted: Mapping[PodIdent, int], now: float) -> list[tuple[PodIdent, int]]:
        """Return what is to be written, in order. Pods that are not wanted are forgotten."""
        for gone in self._written.keys() - wanted.keys():
            del self._written[gone]
        changes = [
            (change, pod, cost)
            for pod, cost in wanted.items()
            if (change := self._change(pod, cost, now)) is not None
        ]
        changes.sort(key=lambda each: (-each[0], each[1]))
        return [(pod, cost) for _, pod, cost in changes[:AT_ONCE]]

    def wrote(self, pod: PodIdent, cost: int, now: float) -> None:
        """Remember a write."""
        self._written[pod] = cost, now

    def forget(self) -> None:
        """Know nothing: another one writes meanwhile."""
        self._written.clear()

    def _change(self, pod: PodIdent, cost: int, now: float) -> float | None:
        """Return by how much a cost has changed; `None`: by too little, or too soon."""
        if pod not in self._written:
            return float(MOST)
        before, at = self._written[pod]
        change = abs(cost - before)
        if now - at < AGAIN_S or change < max(LEAST, SHARE * before):
            return None
        return float(change)


def cost_of(engines: Iterable[tuple[int | None, int]]) -> int | None:
    """Return a pod's cost from worth and requests in flight of each of its engines.

    `None`: of none of them it is known what its cache is worth, and none has a request.
    """
    all_of_them = list(engines)
    known = [worth for worth, _ in all_of_them if worth is not None]
    inflight = sum(requests for _, requests in all_of_them)
    if not known and not inflight:
        return None
    return min(MOST, sum(known) + IN_FLIGHT_TOKENS * inflight)
