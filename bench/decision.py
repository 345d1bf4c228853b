"""One decision: from a prompt's tokens to an engine, accounted. Index, overlay and load included.

    python -m bench.decision [--json FILE]

Prints one table; `bench/README.md` says what each row means. Seeds are fixed.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.policy import MODELS, TEAMS, make_policies
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
from coordinator.load.predict import FixedRate
from coordinator.load.recent import RecentWork
from coordinator.records import Records
from coordinator.rules import Resources, Rules
from coordinator.service import Routed, Service
from coordinator.state.secret import Secret
from coordinator.tagging import GivenTags
from coordinator.tokens.tokenized import Tokenized, TokenState
from lineside import hashing
from lineside.clock import SystemClock
from lineside.digest import SnapshotChunk, checksum
from lineside.ids import (
    BlockKey,
    EngineId,
    Generation,
    GroupId,
    Medium,
    ModelName,
    NodeId,
    TenantId,
)
from lineside.signals import Events, Status

SEED = 20261
ENGINES = 64
KEYS = 1_000_000
POLICIES = 20
IN_FLIGHT = 128
"""Requests in flight: two on each engine, half of them before their first token."""

ROUNDS = 25
DECISIONS = 40
SIZES = {1024: 40, 32_768: 12}
"""Prompt tokens -> prompts, which engines hold at 8 distinct depths."""

GROUP = GroupId("weights")
SECRET = b"secret"
BUDGET_US = {1024: 150, 32_768: 400}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    tokens: int
    us: float
    policies: int = 0
    budget_us: float | None = None


class Given:
    """A tokenizer that was done before."""

    def __init__(self) -> None:
        self.tokenized = Tokenized(TokenState.UNKNOWN, "none")

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        return self.tokenized


@dataclass
class Scene:
    """A coordinator's core, with what it knows."""

    service: Service
    caches: Caches
    tokens: Given
    request: Canonical
    prompts: dict[int, list[bytes]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    scene = make_scene()
    gc.collect()
    gc.freeze()
    rows = [*asyncio.run(decision_rows(scene)), *part_rows(scene)]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(report(rows), indent=2) + "\n")
    return 0


# --- the scene ------------------------------------------------------------------------------------


def make_scene() -> Scene:
    rng, cluster, caches, tokens = random.Random(SEED), Cluster(), Caches(), Given()
    names = [EngineId(f"10.0.0.{number}:8000") for number in range(ENGINES)]
    cluster.assign([_engine(name) for name in names])
    caches.assign(dict.fromkeys(names, GROUP))
    prompts = {
        size: [hashing.pack(rng.randrange(150_000) for _ in range(size)) for _ in range(count)]
        for size, count in SIZES.items()
    }
    held = _held(rng, names, [prompt for of_size in prompts.values() for prompt in of_size])
    for name in names:
        _fill(caches, cluster, name, held[name])
    body = {"model": MODELS[0], "messages": [{"role": "user", "content": "x"}]}
    request = parse(Api.OPENAI_CHAT, {}, json.dumps(body).encode())
    assert isinstance(request, Canonical)
    decider = Decider(
        cluster=cluster,
        rules=Rules(cluster),
        overlaps=caches,
        tokens=tokens,
        inflight=InFlight(),
        overlay=Overlay(),
        recent=RecentWork(),
        predictor=FixedRate(20_000.0, 0.008),
        clock=SystemClock(),
        rng=random.Random(SEED),
        secret=Secret(SECRET),
    )
    service = Service(
        decider=decider,
        limiter=Unlimited(),
        tagger=GivenTags(),
        records=Records(),
        lease_s=600.0,
        audit=Audit(0.0, random.Random()),
    )
    return Scene(service, caches, tokens, request, prompts)


def _engine(name: EngineId) -> Engine:
    models = (ServedModel(ModelName(MODELS[0])),)
    return Engine(name, f"http://{name}", name, GROUP, models, NodeId("n"), events="tcp://e:1")


def _held(
    rng: random.Random, names: list[EngineId], prompts: list[bytes]
) -> dict[EngineId, set[BlockKey]]:
    held: dict[EngineId, set[BlockKey]] = {name: set() for name in names}
    for prompt in prompts:
        keys = hashing.strided(_keys(prompt), STRIDE)
        depths = rng.sample(range(1, len(keys) + 1), 8)
        for name in names:
            held[name].update(keys[: rng.choice(depths)])
    for name in names:  # others' prompts
        held[name].update(BlockKey(rng.getrandbits(64)) for _ in range(KEYS // ENGINES))
    return held


def _keys(prompt: bytes) -> list[BlockKey]:
    return hashing.chain(hashing.seed(SECRET), prompt)


def _fill(caches: Caches, cluster: Cluster, name: EngineId, keys: set[BlockKey]) -> None:
    stream, held = Stream("life", 1), [(key, Medium.GPU) for key in keys]
    total = checksum(held)
    chunk = SnapshotChunk(
        engine=name,
        generation=Generation("g"),
        digest_seq=0,
        chunk=0,
        last=True,
        keys=held,
        count=len(held),
        checksum=total,
        stride=STRIDE,
        media=1,
    )
    caches.connect(name, stream)
    assert caches.apply(stream, chunk) is None
    heard_at = SystemClock().monotonic() + 3600  # as fresh at the end as at the start
    cluster.observe_status(name, Status(Events.LIVE, block_size=16), heard_at)
    cluster.observe_digest(name, "g", True, False, heard_at)


# --- what is measured -----------------------------------------------------------------------------


async def decision_rows(scene: Scene) -> list[Row]:
    """Time whole decisions while `IN_FLIGHT` others are under way."""
    rows = []
    for policies in (POLICIES, 0):
        scene.service.decider.rules.swap(Resources(policies=tuple(make_policies(policies))))
        for size in SIZES:
            times = await _decisions(scene, size)
            keys = best(_rounds([partial(_keys, prompt) for prompt in scene.prompts[size]]))
            budget = BUDGET_US[size] if policies else None
            rows.append(
                Row("decision, the prompt's keys included", size, best(times), policies, budget)
            )
            rows.append(Row("the same, keys known", size, best(times) - keys, policies))
            rows.append(Row("the same, keys included, p99", size, _p99(times), policies))
    return rows


async def _decisions(scene: Scene, size: int) -> list[list[float]]:
    service, prompts, rounds = scene.service, scene.prompts[size], []
    tenants = [TenantId(f"team{team}-{each}") for each in "abc" for team in range(TEAMS)]
    under_way: deque[Routed] = deque()
    for _ in range(ROUNDS):
        times = []
        for number in range(DECISIONS):
            prompt = prompts[number % len(prompts)]
            scene.tokens.tokenized = Tokenized(TokenState.EXACT, "given", prompt, size)
            start = time.perf_counter_ns()
            routed = await service.route(scene.request, tenants[number % len(tenants)], "request")
            times.append((time.perf_counter_ns() - start) / 1e3)
            assert isinstance(routed, Routed)
            under_way.append(routed)
            if len(under_way) > IN_FLIGHT // 2:
                service.first_token(under_way[-IN_FLIGHT // 2])
            if len(under_way) > IN_FLIGHT:
                service.finished(under_way.popleft(), 200, Usage(), "stop")
        rounds.append(times)
    for routed in under_way:
        service.aborted(routed, Usage())
    return rounds


def part_rows(scene: Scene) -> Iterator[Row]:
    """Time the parts of a decision that differ with the prompt."""
    for size, prompts in scene.prompts.items():
        chains = [_keys(prompt) for prompt in prompts]
        strided = [hashing.strided(chain, STRIDE) for chain in chains]
        overlay = Overlay()
        for number, keys in enumerate(strided):
            overlay.take(EngineId(f"10.0.0.{number}:8000"), GROUP, keys, 1e9)
        for what, calls in (
            ("keys of the prompt", [partial(_keys, prompt) for prompt in prompts]),
            ("index look-up", [partial(scene.caches.overlap, GROUP, chain) for chain in chains]),
            ("overlay look-up", [partial(_look_up, overlay, chain) for chain in chains]),
            ("overlay claim and its end, cold", _claims(overlay, size)),
            ("overlay claim and its end, known", [partial(_claim, overlay, k) for k in strided]),
        ):
            yield Row(what, size, best(_rounds(calls)))


def _look_up(overlay: Overlay, chain: list[BlockKey]) -> object:
    return overlay.units(GROUP, hashing.strided(chain, STRIDE))


def _claims(overlay: Overlay, size: int) -> list[Callable[[], object]]:
    rng = random.Random(SEED + 1)
    cold = [
        [BlockKey(rng.getrandbits(64)) for _ in range(size // hashing.UNIT // STRIDE)]
        for _ in range(DECISIONS)
    ]
    return [partial(_claim, overlay, keys) for keys in cold]


def _claim(overlay: Overlay, keys: list[BlockKey]) -> None:
    claim = overlay.take(EngineId("10.0.0.1:8000"), GROUP, keys, 1e9)
    assert claim
    overlay.drop(claim)


def _rounds(calls: Sequence[Callable[[], object]]) -> list[list[float]]:
    rounds = []
    for _ in range(ROUNDS):
        times = []
        for call in calls:
            start = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start) / 1e3)
        rounds.append(times)
    return rounds


def best(rounds: list[list[float]]) -> float:
    """Return the median call of the fastest round: what else runs here is left out."""
    return min(map(statistics.median, rounds))


def _p99(rounds: list[list[float]]) -> float:
    return statistics.quantiles([each for times in rounds for each in times], n=100)[-1]


# --- paper ----------------------------------------------------------------------------------------


def show(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{ENGINES} engines, {IN_FLIGHT} requests in flight, {KEYS} keys")
    print(f"{'':{width}}  {'tokens':>6}  {'policies':>8}  {'µs':>8}  budget")
    for row in rows:
        numbers = f"{row.tokens:>6}  {row.policies or '':>8}  {row.us:>8.1f}"
        budget = "" if row.budget_us is None else f"{row.budget_us:g}"
        print(f"{row.what:{width}}  {numbers}  {budget}".rstrip())


def report(rows: list[Row]) -> dict[str, Any]:
    return {
        "bench": "decision",
        "seed": SEED,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "engines": ENGINES,
        "in_flight": IN_FLIGHT,
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
