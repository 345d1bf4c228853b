"""Random decisions of one seed, for a comparison: `python -m tests.compiled.decisions COUNT`.

Prints the seed's world as it goes on, a line for each decision: its record, at once and when it has
ended, and what it left in queues. Two trees that decide alike print the same bytes.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from coordinator.attempts import Attempt, Repeat
from coordinator.canonical import Api, Canonical, parse
from coordinator.cluster import Cluster
from coordinator.decider import Decider
from coordinator.engines import Engine, ServedModel
from coordinator.holdings.audit import Audit
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import Stream
from coordinator.holdings.overlay import STRIDE, Overlay
from coordinator.limits import Unlimited, Usage
from coordinator.load.inflight import InFlight
from coordinator.load.predict import Learned
from coordinator.load.recent import RecentWork
from coordinator.records import Record, Records
from coordinator.refusal import UpstreamBroken
from coordinator.rules import Resources, Rules
from coordinator.service import Routed, Service
from coordinator.state.secret import Secret
from coordinator.tagging import GivenTags
from coordinator.tokens.tokenized import Tokenized, TokenState
from lineside import hashing
from lineside.digest import SnapshotChunk, checksum
from lineside.ids import EngineId, Generation, GroupId, Medium, ModelName, NodeId, TenantId
from lineside.signals import Events, Load, Status
from policies.load import load
from policies.model import Mode
from tests.manual_clock import ManualClock
from tests.policy_strategies import CALLED, HEADERS, TAGS, TENANTS, policies

SEED = 20261
MODELS = ("glm", "glm", "glm", "qwen", "qwen", "qwen-mini")
"""What engines serve, in turn."""

ENGINES = 12
PROMPTS = 40
OPEN = 30
"""Requests in flight; then the oldest ends."""

NEWS = 25
"""Decisions after which something becomes of the cluster."""

RESOURCES = b"""
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: { name: a, namespace: n }
spec: { engines: [ { url: "http://e0:8000" }, { url: "http://e1:8000" }, { url: "http://e3:8000" } ], labels: { zone: a } }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: { name: b, namespace: n }
spec: { engines: [ { url: "http://e2:8000" }, { url: "http://e4:8000" }, { url: "http://e5:8000" } ], labels: { zone: b } }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: east, namespace: n }
spec: { workerSets: [ a ], models: [ { name: glm, aliases: [ chat ], classes: [ large ] }, { name: qwen } ] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: west, namespace: n }
spec:
  workerSets: [ b ]
  models: [ { name: qwen, classes: [ large, open ] }, { name: qwen-mini, aliases: [ fast ] } ]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: { name: bedrock, namespace: n }
spec: { type: OpenAI, baseURL: "https://bedrock.example/v1", models: [ { name: glm } ] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: { name: databricks, namespace: n }
spec: { type: OpenAI, baseURL: "https://databricks.example/v1", models: [ { name: glm }, { name: qwen } ] }
"""  # noqa: E501


class Given:
    """A tokenizer that was done before."""

    def __init__(self) -> None:
        self.tokenized = Tokenized(TokenState.UNKNOWN, "none")

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        return self.tokenized


class World:
    """A coordinator's core, the engines that it hears of, and their clients."""

    def __init__(self, seed: int) -> None:
        self.rng, self.clock, self.given = Random(seed), ManualClock(), Given()
        self.caches, self.stream, cluster = Caches(), Stream("life", 1), Cluster()
        self.engines = [_engine(number) for number in range(ENGINES)]
        cluster.assign(self.engines)
        self.caches.assign({each.id: each.group for each in self.engines})
        self.prompts = [self._prompt() for _ in range(PROMPTS)]
        decider = Decider(
            cluster=cluster,
            rules=Rules(cluster),
            overlaps=self.caches,
            tokens=self.given,
            inflight=InFlight(),
            overlay=Overlay(),
            recent=RecentWork(),
            predictor=Learned(20_000.0, 0.008),
            clock=self.clock,
            rng=Random(seed),
            secret=Secret(b"secret"),
        )
        self.service = Service(
            decider=decider,
            limiter=Unlimited(),
            tagger=GivenTags((), "x-tags"),
            records=Records(),
            lease_s=30.0,
            audit=Audit(0.0, Random(seed)),
            shed_wait_s=20.0,
        )
        self.open: list[Routed] = []
        for each in self.engines:
            self.caches.connect(each.id, self.stream)
            self._hold(each)
            self._hear(each)

    async def step(self, number: int) -> list[Any]:
        """Let time pass, perhaps something happen, and decide on a request."""
        rng, service = self.rng, self.service
        self.clock.now += rng.choice((0.0, 0.001, 0.01, 0.1, 0.7))
        if number % NEWS == 0:
            self._news()
        ended = self._follow()
        late = service.expire()
        self.given.tokenized = self._tokenized()
        answer = await service.route(self._request(), TenantId(rng.choice(TENANTS)), str(number))
        if isinstance(answer, Routed):
            self.open.append(answer)
        queues = service.inflight.queues([each.id for each in self.engines], self.clock.now)
        return [shown(answer.record), ended, late, queues]

    def _follow(self) -> list[Any]:
        rng, service, ended = self.rng, self.service, []
        for routed in list(self.open):
            if rng.random() < 0.1:
                service.first_token(routed)
        while self.open and (len(self.open) > OPEN or rng.random() < 0.3):
            routed = self.open.pop(rng.randrange(len(self.open)))
            usage = Usage(rng.randrange(3000), rng.randrange(1000), rng.randrange(300))
            match rng.randrange(6):
                case 0:
                    service.aborted(routed, usage)
                case 1:
                    service.failed(routed, UpstreamBroken("broken"))
                case 2:
                    why = Attempt(routed.target.id, rng.choice(list(Repeat)), "gone")
                    if service.fallback(routed, why):
                        self.open.append(routed)
                        continue
                    service.failed(routed, UpstreamBroken("broken"))
                case _:
                    service.finished(routed, 200, usage, "stop")
            ended.append(shown(routed.record))
        return ended

    # --- what comes of the cluster ----------------------------------------------------------------

    def _news(self) -> None:
        rng, cluster = self.rng, self.service.cluster
        if rng.random() < 0.5:
            modes = (Mode.ENFORCE, Mode.ENFORCE, Mode.SHADOW)
            drawn = tuple(policies(rng, modes))
            known = [each.resource for each in load([("r", RESOURCES)]).resources]
            resources = Resources.of([*known, *drawn] if rng.random() < 0.9 else drawn)
            self.service.decider.rules.swap(resources)
        for each in rng.sample(self.engines, 4):
            self._hear(each)
            match rng.randrange(8):
                case 0:
                    cluster.observe_away(each.id, rng.choice(("", "gone")))
                case 1:
                    cluster.observe_failing(each.id, rng.choice(("", "broken")))
                case 2:
                    self._hold(each)
                case 3:
                    self.service.decider.welcome(each)
        while self.caches.sweep_step():
            pass

    def _hear(self, engine: Engine) -> None:
        rng, now = self.rng, self.clock.now
        state = rng.choice((Events.LIVE, Events.LIVE, Events.LIVE, Events.UNSURE, Events.NONE))
        cluster = self.service.cluster
        cluster.observe_status(engine.id, Status(state, block_size=rng.choice((16, 32, 0))), now)
        used = rng.choice((None, 0.1, 0.95))
        cluster.observe_load(engine.id, Load(rng.randrange(5), rng.randrange(9), used), now)

    def _hold(self, engine: Engine) -> None:
        """Let an engine hold other prompts, to other depths."""
        rng, held = self.rng, {}
        for prompt in rng.sample(self.prompts, 10):
            seed = hashing.seed(b"secret", engine.models[0].lora, None)
            keys = hashing.strided(hashing.chain(seed, prompt), STRIDE)
            for key in keys[: rng.randrange(len(keys) + 1)]:
                held[key] = rng.choice((Medium.GPU, Medium.GPU, Medium.CPU))
        keys, generation = list(held.items()), Generation(str(rng.random()))
        chunk = SnapshotChunk(
            engine=engine.id,
            generation=generation,
            digest_seq=0,
            chunk=0,
            last=True,
            keys=keys,
            count=len(keys),
            checksum=checksum(keys),
            stride=STRIDE,
            media=2,
        )
        assert self.caches.apply(self.stream, chunk) is None
        self.service.cluster.observe_digest(engine.id, generation, True, False, self.clock.now)

    # --- what clients send ------------------------------------------------------------------------

    def _request(self) -> Canonical:
        rng = self.rng
        body = {"model": rng.choice(CALLED), "messages": [{"role": "user", "content": "x"}]}
        if rng.random() < 0.3:
            body |= {"max_tokens": rng.randrange(1, 2000), "stream": rng.random() < 0.8}
        headers = {name: rng.choice(("on", "eu", "us")) for name in HEADERS if rng.random() < 0.3}
        headers["x-tags"] = ",".join(
            f"{tag}={rng.choice(('present', 'absent', 'unknown'))}" for tag in TAGS
        )
        request = parse(Api.OPENAI_CHAT, headers, json.dumps(body).encode())
        assert isinstance(request, Canonical)
        return request

    def _tokenized(self) -> Tokenized:
        if self.rng.random() < 0.1:
            return Tokenized(TokenState.UNKNOWN, "none")
        prompt = self.rng.choice(self.prompts)
        return Tokenized(TokenState.EXACT, "given", prompt, len(prompt) // 4)

    def _prompt(self) -> bytes:
        count = self.rng.choice((10, 100, 1000, 3000))
        return hashing.pack(self.rng.randrange(150_000) for _ in range(count))


def shown(record: Record) -> dict[str, Any]:
    """Return a record without its name, which is nobody's choice."""
    return record.to_json() | {"id": ""}


def _engine(number: int) -> Engine:
    name, lora = f"e{number}:8000", "adapter" if number % 5 == 4 else None
    model = MODELS[number % len(MODELS)]
    return Engine(
        id=EngineId(name),
        base_url=f"http://{name}",
        endpoint=name,
        group=GroupId(model),
        models=(ServedModel(ModelName(model), lora=lora),),
        node=NodeId("n"),
        events="tcp://e:1",
    )


async def main(count: int) -> None:
    """Print so many decisions."""
    world = World(SEED)
    for number in range(count):
        print(json.dumps(await world.step(number)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
