"""A coordinator's core over engines that cache whatever they are sent, and say so when told to."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.canonical import Api, Canonical, parse
from coordinator.cluster import Cluster
from coordinator.decider import Decider, Overlaps
from coordinator.engines import Engine, ServedModel
from coordinator.holdings.audit import Audit
from coordinator.holdings.overlay import Overlay
from coordinator.limits import Unlimited, Usage
from coordinator.load.inflight import InFlight
from coordinator.load.predict import FixedRate
from coordinator.load.recent import RecentWork
from coordinator.measurement import Units
from coordinator.records import Record, Records
from coordinator.rules import Rules
from coordinator.service import Routed, Service
from coordinator.state.secret import Secret
from coordinator.tagging import GivenTags
from coordinator.tokens.tokenized import Tokenized, TokenState
from lineside import hashing
from lineside.ids import BlockKey, EngineId, GroupId, ModelName, NodeId, TenantId
from lineside.signals import Events, Status
from tests.manual_clock import ManualClock

GROUP = GroupId("g")


@dataclass
class Index:
    """What engines hold, by their own word."""

    held: dict[EngineId, set[BlockKey]] = field(default_factory=dict)

    def alike(
        self, group: GroupId, unit_keys: Sequence[BlockKey], limit: int | None = None
    ) -> list[tuple[Units, tuple[EngineId, ...]]]:
        found = []
        for engine, held in self.held.items():
            depth = next((at for at, key in enumerate(unit_keys) if key not in held), None)
            units = len(unit_keys) if depth is None else depth
            if units := units // 4 * 4:
                found.append(((units, units, units), (engine,)))
        return found


class Given:
    """The tokens of the request at hand."""

    def __init__(self) -> None:
        self.prompt: list[int] = []

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        return Tokenized(TokenState.EXACT, "given", hashing.pack(self.prompt), len(self.prompt))


class Cell:
    """A coordinator's core with engines that compute 20,000 tokens a second."""

    def __init__(self, engines: int, seed: int = 1, overlaps: Overlaps | None = None) -> None:
        self.clock, self.index, self.tokens = ManualClock(), Index(), Given()
        self.rng = random.Random(seed)
        cluster = Cluster()
        names = [EngineId(f"e{number}") for number in range(engines)]
        cluster.assign([engine(name) for name in names])
        for name in names:
            cluster.observe_status(name, Status(Events.LIVE, block_size=16), self.clock.now)
            cluster.observe_digest(name, "g1", True, False, self.clock.now)
            self.index.held[name] = set()
        self.sent: Counter[str] = Counter(dict.fromkeys(names, 0))
        self.cluster = cluster
        decider = Decider(
            cluster=cluster,
            rules=Rules(cluster),
            overlaps=overlaps or self.index,
            tokens=self.tokens,
            inflight=InFlight(),
            overlay=Overlay(),
            recent=RecentWork(),
            predictor=FixedRate(20_000.0, 0.008),
            clock=self.clock,
            rng=random.Random(seed),
            secret=Secret(b"secret"),
        )
        self.service = Service(
            decider=decider,
            limiter=Unlimited(),
            tagger=GivenTags(),
            records=Records(),
            lease_s=100.0,
            audit=Audit(0.0, random.Random()),
        )

    def text(self, tokens: int) -> list[int]:
        return [self.rng.randrange(150_000) for _ in range(tokens)]

    async def send(self, prompt: list[int]) -> Routed:
        self.tokens.prompt = prompt
        routed = await self.service.route(REQUEST, TenantId("t"), "req")
        assert isinstance(routed, Routed)
        self.sent[routed.target.id] += 1
        return routed

    async def dry_run(self, prompt: list[int]) -> Record:
        """Decide, and account nothing."""
        self.tokens.prompt = prompt
        return await self.service.dry_run(REQUEST, TenantId("t"))

    async def finish(self, routed: Routed, prompt: list[int]) -> None:
        """Let the engine answer at once, and say what it holds."""
        self.service.first_token(routed)
        self.service.finished(routed, 200, Usage(), "stop")
        chain = hashing.chain(hashing.seed(b"secret"), hashing.pack(prompt))
        self.index.held[routed.target.id].update(chain)

    async def pause(self, seconds: float) -> None:
        """Let time pass; agents go on reporting."""
        await self.clock.advance(seconds)
        for name in self.sent:
            self.cluster.observe_status(
                EngineId(name), Status(Events.LIVE, block_size=16), self.clock.now
            )


def engine(name: EngineId, events: str = "tcp://e:1") -> Engine:
    return Engine(
        id=name,
        base_url=f"http://{name}",
        endpoint=name,
        group=GROUP,
        models=(ServedModel(ModelName("m")),),
        node=NodeId("n"),
        events=events,
    )


_body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
_parsed = parse(Api.OPENAI_CHAT, {}, json.dumps(_body).encode())
assert isinstance(_parsed, Canonical)
REQUEST = _parsed
