"""Several coordinators before the same engines as one strategy of a replay, in virtual time.

Each is the product's own core; each request comes to one of them by chance. What they have in
flight they tell each other by way of one agent, as often and as late as processes do.
"""

import heapq
import random
from collections.abc import Mapping, Sequence

from cli.virtual_router import USUAL, Index, Parts, VirtualRouter
from coordinator.agents.sessions import TELL_S
from coordinator.state.peers import Peers, Word
from lineside.ids import EngineId, NodeId
from lineside.signals import InFlight
from simulate.virtual import Job

NODE = NodeId("replay")


class Coordinators:
    """So many routers, and the agent between them."""

    def __init__(
        self, count: int, engines: int, rng: random.Random, parts: Parts = USUAL, tells: bool = True
    ) -> None:
        """`tells`: whether they hear of each other at all."""
        self._rng, self._tells = rng, tells
        self._engines = [EngineId(f"engine-{number}") for number in range(1, engines + 1)]
        self._index = Index(self._engines)
        self._peers = [Peers() for _ in range(count)]
        self._names = [f"coordinator-{number}" for number in range(count)]
        for peers, name in zip(self._peers, self._names, strict=True):
            peers.call_me(name)
        self.routers = [
            VirtualRouter(
                engines, random.Random(rng.random()), parts, peers=peers, index=self._index
            )
            for peers in self._peers
        ]
        self._of: dict[int, VirtualRouter] = {}
        self._said: dict[str, tuple[Mapping[EngineId, InFlight], float]] = {}
        self._due: list[tuple[float, int]] = [
            (TELL_S * (number + 1) / (count + 1), number) for number in range(count + 1)
        ]
        """When each speaks next; the last one is the agent."""

    def choose(self, job: Job, now: float) -> int | None:
        self._pass(now)
        router = self._of[job.id] = self._rng.choice(self.routers)
        return router.choose(job, now)

    def first_token(self, job: Job, engine: int, at: float) -> None:
        self._pass(at)
        self._of[job.id].first_token(job, engine, at)

    def finished(self, job: Job, engine: int, at: float) -> None:
        self._pass(at)
        self._of.pop(job.id).finished(job, engine, at)

    def announced(
        self, engine: int, stored: Sequence[int], removed: Sequence[int], at: float
    ) -> None:
        self._pass(at)
        self._index.announced(engine, stored, removed)
        for router in self.routers:
            router.heard(engine, removed)

    def _pass(self, now: float) -> None:
        """Have said and heard what was due by now."""
        while self._tells and self._due[0][0] <= now:
            at, number = self._due[0]
            heapq.heapreplace(self._due, (at + TELL_S, number))
            if number < len(self.routers):
                self._tell(number, at)
            else:
                self._relay(at)

    def _tell(self, number: int, at: float) -> None:
        self._peers[number].look(at)
        own = self.routers[number].own
        own.look()
        self._said[self._names[number]] = own.word(self._engines, at), at

    def _relay(self, at: float) -> None:
        words = [Word(name, said, at - since) for name, (said, since) in self._said.items()]
        for peers in self._peers:
            peers.hear(NODE, words, self._engines, at)
