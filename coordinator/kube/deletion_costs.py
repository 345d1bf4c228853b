"""Writes deletion costs to engines' pods, whenever this coordinator leads. Decides nothing.

`costs` says what is to be written. A pod that is gone meanwhile is left alone; without the right to
patch pods nothing is tried for a while.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from coordinator.kube.api import Api, ApiAway
from coordinator.kube.costs import ANNOTATION, Costs, cost_of
from coordinator.kube.kinds import PODS
from coordinator.kube.pods import Pod
from lineside import logs
from lineside.clock import Clock
from lineside.ids import PodIdent

log = logs.get("coordinator.kube.deletion_costs")

ROUND_S = 30.0

REFUSED_S = 300.0
"""After a 403: rights come with an installation, not by themselves."""

MERGE_PATCH = "application/merge-patch+json"

Worths = Callable[[], Mapping[str, tuple[int | None, int]]]
"""By engines' endpoint (`ip:port`, with the rank where there are several)."""


class DeletionCosts:
    """The only writer of that annotation."""

    def __init__(
        self,
        api: Api,
        clock: Clock,
        leads: Callable[[], bool],
        pods: Callable[[], list[Pod]],
        worths: Worths,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Writes by outcome: written, gone, failed."""
        self._api, self._clock, self._leads = api, clock, leads
        self._pods, self._worths = pods, worths
        self._costs = Costs()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._clock.sleep(await self.look())

    async def look(self) -> float:
        """Write what is due; return for how long to wait."""
        if not self._leads():
            self._costs.forget()
            return ROUND_S
        wanted = dict(wanted_of(self._pods(), self._worths()))
        for pod, cost in self._costs.due(wanted, self._clock.monotonic()):
            if not self._leads():
                break
            try:
                status = await self._write(pod, cost)
            except ApiAway:
                break  # readiness says so; the next round is soon
            if status == 403:
                text = "pods' deletion costs cannot be written: we may not patch pods"
                log.warning(text, namespace=pod.namespace)
                return REFUSED_S
        return ROUND_S

    async def _write(self, pod: PodIdent, cost: int) -> int:
        # With the uid the server refuses it for a pod of the same name that came after.
        meta = {"uid": pod.uid, "annotations": {ANNOTATION: str(cost)}}
        path = PODS.object(pod.namespace, pod.name)
        answer = await self._api.ask("PATCH", path, (), {"metadata": meta}, MERGE_PATCH)
        gone = answer.status in (404, 409)
        self.counts["written" if answer.is_good else "gone" if gone else "failed"] += 1
        if answer.is_good:
            self._costs.wrote(pod, cost, self._clock.monotonic())
        elif not gone:
            log.warning("deletion cost not written", pod=pod.name, reason=answer.reason)
        return answer.status


def wanted_of(
    pods: list[Pod], worths: Mapping[str, tuple[int | None, int]]
) -> Iterator[tuple[PodIdent, int]]:
    """Yield each engine's pod with its cost. An address that several pods have says nothing."""
    addresses = Counter(pod.ip for pod in pods if not pod.has_ended)
    at: dict[str, list[tuple[int | None, int]]] = {}
    for endpoint, worth in worths.items():
        at.setdefault(urlsplit(f"//{endpoint}").hostname or "", []).append(worth)
    for pod in pods:
        if pod.has_ended or pod.is_terminating or addresses[pod.ip] > 1 or pod.ip not in at:
            continue
        if (cost := cost_of(at[pod.ip])) is not None:
            yield PodIdent(pod.namespace, pod.name, pod.uid), cost
