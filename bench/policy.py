"""Policies: from a request's facts to ranked targets. Compiling and binding them beside it.

    python bench/policy.py [--json FILE]

Prints one table; `bench/README.md` says what each row means. Seeds are fixed.
"""

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from lineside.ids import ModelName
from policies.evaluate import Bound, Plan, compile_
from policies.facts import Inventory, Measured, Model, RequestFacts, Target, Truth
from policies.model import BackendType, InferencePolicy, Measure
from policies.verdict import Chosen

SEED = 20265
POOLS, ENGINES_IN_POOL = 4, 16
PROVIDERS = ("bedrock", "databricks", "openai", "azure")
MODELS = ("glm-5.3", "qwen-3.6-27b")
TEAMS = 5
ROUNDS, REQUESTS = 25, 100
BUDGET_US = 100

T = TypeVar("T")

KINDS = (
    """
    - name: stay
      matches: [{tenant: "TEAM-*"}]
      route:
        exclude: [{name: data, if: {tag: TAG}, drop: {backend: {type: Provider}}}]
        select: [{type: Local}]
        onEmpty: NextRule
    """,
    """
    - name: burst
      matches: [{model: glm-5.3, tenant: TEAM-a}]
      route:
        exclude:
        - {name: busy, drop: {backend: {type: Local}, queuedPrompts: {greaterThan: 4}}}
        - {name: full, drop: {kvCacheUsage: {greaterThan: 0.9}, runningPrompts: {greaterThan: 30}}}
        select:
        - {type: Local, minimize: PredictedTTFT}
        - {type: Provider, order: [bedrock, databricks]}
        set: {maxTokens: 4096}
    """,
    """
    - name: canary
      matches: [{model: "glm*", headers: {x-canary: "on*"}, tenant: "TEAM-*"}]
      route:
        select:
        - split: [{backend: pool-0, weight: 95}, {backend: pool-1, weight: 5}]
        - type: Provider
    """,
    """
    - name: long
      matches: [{tenant: "TEAM-*", inputTokens: {greaterThan: 60000}}, {tag: long-TAG}]
      route:
        consider: [{pools: ["pool-*"], backend: {labels: {memory: large}}}]
        select: [{maximize: CachedTokens}]
    """,
    """
    - name: guard
      matches: [{tenant: "TEAM-*", pool: {saturated: false}}, {api: openai-completions}]
      route:
        exclude:
        - {name: region, if: {headers: {x-region: eu}}, drop: {backend: {labels: {region: us}}}}
        - name: dear
          if: {tags: {none: [paid-TAG]}}
          drop: {backend: {type: Provider}, cost: {greaterThan: 0.05}}
        - {name: stale, if: {stream: true}, drop: {freshness: {greaterThan: 5}}}
        select: [{type: Local}, {type: Provider, minimize: Cost}]
    """,
    """
    - name: deny
      matches: [{model: "*-27b", tenant: TEAM-intern}]
      reject: {message: not for interns}
    """,
)
"""What policies are made of. Each policy has two, with a tag and a team of its own."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    policies: int
    us: float
    budget_us: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    inventory = make_inventory()
    rows = [row for count in (0, 20, 200) for row in measure(count, inventory)]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(report(rows), indent=2) + "\n")
    return 0


# --- the scene ------------------------------------------------------------------------------------


def make_policies(count: int) -> list[InferencePolicy]:
    """Return policies of two rules each, over three priorities."""
    return [_policy(number) for number in range(count)]


def _policy(number: int, mode: str = "Enforce") -> InferencePolicy:
    rules = [rule for step in (0, 2) for rule in _rules(number + step)]
    document = {
        "apiVersion": "kinference.buoyant.io/v1alpha1",
        "kind": "InferencePolicy",
        "metadata": {"name": f"policy-{number}", "namespace": "bench"},
        "spec": {"priority": number % 3, "mode": mode, "rules": rules},
    }
    return msgspec.convert(document, InferencePolicy)


def _rules(number: int) -> list[dict[str, Any]]:
    text = KINDS[number % len(KINDS)].replace("TEAM", f"team{number % TEAMS}")
    rules: list[dict[str, Any]] = yaml.safe_load(text.replace("TAG", f"tag{number % 7}"))
    return rules


def make_inventory() -> Inventory:
    """Return 64 engines in four pools and four providers, all with the model that is asked for."""
    targets = []
    for pool in range(POOLS):
        for number in range(ENGINES_IN_POOL):
            engine = f"10.0.{pool}.{number}:8000"
            names = frozenset({engine, f"pool-{pool}", f"workers-{pool}"})
            targets.append(_target(engine, BackendType.LOCAL, names, {"memory": _size(number)}))
    for number, name in enumerate(PROVIDERS):
        region = {"region": "eu" if number % 2 else "us"}
        targets.append(_target(name, BackendType.PROVIDER, frozenset({name}), region))
    models = [Model(ModelName(each), frozenset({f"{each}-chat"})) for each in MODELS]
    return Inventory(tuple(targets), {each.name: each for each in models})


def _size(number: int) -> str:
    return "small" if number % 4 else "large"


def _target(name: str, kind: BackendType, names: frozenset[str], labels: dict[str, str]) -> Target:
    pools = frozenset(each for each in names if each.startswith("pool-"))
    return Target(name, kind, ModelName(MODELS[0]), names, labels, pools)


def make_requests(rng: random.Random) -> list[RequestFacts]:
    """Return requests of all teams: some with tags, headers or long prompts, most plain."""
    return [
        RequestFacts(
            model=MODELS[0],
            tenant=f"team{rng.randrange(TEAMS)}-{rng.choice('abc')}",
            api="openai-chat",
            stream=rng.random() < 0.8,
            input_tokens=rng.choice((800, 3000, 20_000, 90_000)),
            tags={
                f"{kind}tag{number}": Truth.TRUE if rng.random() < 0.1 else Truth.FALSE
                for number in range(7)
                for kind in ("", "long-", "paid-")
            },
            headers={"x-canary": "on"} if rng.random() < 0.05 else {},
            conversation=f"{rng.getrandbits(64):x}",
        )
        for _ in range(REQUESTS)
    ]


def make_measured(rng: random.Random, size: int) -> Measured:
    """Return ready measurements: a tenth of the engines are busy."""
    busy = [rng.random() < 0.1 for _ in range(size)]
    columns = {measure: [rng.random() for _ in range(size)] for measure in Measure}
    columns[Measure.QUEUED_PROMPTS] = [9.0 if each else 0.0 for each in busy]
    ranking = [round(value, 1) for value in columns[Measure.PREDICTED_TTFT]]  # with ties

    def column(measure: Measure, places: Sequence[int]) -> Sequence[float | None]:
        values = columns[measure]
        return [values[place] for place in places]

    return Measured(column, lambda places: [ranking[place] for place in places])


# --- what is measured -----------------------------------------------------------------------------


def measure(count: int, inventory: Inventory) -> list[Row]:
    """Time each step with that many policies."""
    rng = random.Random(SEED)
    policies, requests = make_policies(count), make_requests(rng)
    measured = make_measured(rng, len(inventory.targets))
    compiled = compile_(policies)
    bound = compiled.bind(inventory)
    plans = [plan for each in requests if isinstance(plan := _plan(bound, each), Plan)]
    gc.collect()
    gc.freeze()
    whole = best(lambda each: _decide(_plan(bound, each), measured, rng), requests)
    shadowed = compile_([*policies, _policy(count, mode="Shadow")]).bind(inventory)
    return [
        Row("plan and decide", count, whole, BUDGET_US if count == 20 else None),
        Row("plan alone", count, best(lambda each: _plan(bound, each), requests)),
        Row("decide alone", count, best(lambda each: _decide(each, measured, rng), plans)),
        Row(
            "plan and decide, with a shadow policy more",
            count,
            best(lambda each: _decide(_plan(shadowed, each), measured, rng), requests),
        ),
        Row("compile, per change of policies", count, best(compile_, [policies] * 5, rounds=5)),
        Row("bind, per change of targets", count, best(compiled.bind, [inventory] * 5, rounds=5)),
        Row(
            "reasons of a decision, when asked",
            count,
            best(_dropped, _chosen(plans, measured, rng)),
        ),
    ]


def _plan(bound: Bound, facts: RequestFacts) -> object:
    return bound.plan(facts, {"pool-0": True, "pool-1": False})


def _decide(plan: object, measured: Measured, rng: random.Random) -> object:
    assert isinstance(plan, Plan), plan
    return plan.decide(measured, rng)


def _chosen(plans: Sequence[Plan], measured: Measured, rng: random.Random) -> list[Chosen]:
    found = [plan.decide(measured, rng) for plan in plans]
    return [each for each in found if isinstance(each, Chosen)]


def _dropped(chosen: Chosen) -> object:
    return chosen.dropped


def best(call: Callable[[T], object], over: Sequence[T], rounds: int = ROUNDS) -> float:
    """Return the median call of the fastest round: what else runs here is left out."""
    medians = []
    for _ in range(rounds):
        times = []
        for each in over:
            start = time.perf_counter_ns()
            call(each)
            times.append((time.perf_counter_ns() - start) / 1e3)
        medians.append(statistics.median(times))
    return min(medians)


# --- paper ----------------------------------------------------------------------------------------


def show(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{POOLS * ENGINES_IN_POOL} engines, {len(PROVIDERS)} providers, {REQUESTS} requests")
    print(f"{'':{width}}  {'policies':>8}  {'µs':>8}  budget")
    for row in rows:
        budget = "" if row.budget_us is None else f"{row.budget_us:g}"
        print(f"{row.what:{width}}  {row.policies:>8}  {row.us:>8.1f}  {budget}".rstrip())


def report(rows: list[Row]) -> dict[str, Any]:
    return {
        "bench": "policies",
        "seed": SEED,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "targets": POOLS * ENGINES_IN_POOL + len(PROVIDERS),
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
