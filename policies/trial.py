"""One request, tried on policies and a cluster at one moment: who was chosen, and why not others.

Pure, and the same every time: what is left to chance is tried with several numbers.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lineside.ids import ModelName
from policies.evaluate import compile_
from policies.facts import RequestFacts, Target
from policies.model import InferencePolicy, Measure
from policies.state import Cluster
from policies.verdict import Chosen, Denied, Empty, Source

CHANCES = 16
"""Numbers to try. Of two that tie, one wins all of them once in 30,000 trials."""

UNAVAILABLE = "not available"

RECORDED_AS: Mapping[Measure, str] = {
    Measure.PREDICTED_TTFT: "predicted_ttft_s",
    Measure.PREDICTED_E2E: "predicted_e2e_s",
    Measure.QUEUED_PROMPTS: "queued_prompts",
    Measure.RUNNING_PROMPTS: "running_prompts",
    Measure.UNCACHED_TOKENS: "uncached_tokens",
    Measure.CACHED_TOKENS: "overlap_tokens",
    Measure.KV_CACHE_USAGE: "kv_cache_usage",
    Measure.GPU_UTILIZATION: "gpu_utilization",
    Measure.COST: "price",
    Measure.FRESHNESS: "freshness_s",
}
"""What decision records call each measurement; their `cost` is no money."""

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend with a model, and what became of it."""

    place: int
    """In the inventory."""
    target: Target
    stage: str = ""
    """Where it is ranked; empty: it was dropped."""
    dropped_by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the policies say of a request."""

    facts: RequestFacts
    cluster: Cluster
    verdict: Chosen | Empty | Denied
    candidates: tuple[Candidate, ...]
    """Ranked ones first, the winner at the front; then those that were dropped."""
    winners: tuple[Target, ...]
    """Several where chance decides."""

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """The winner, then its fallbacks."""
        return tuple(each for each in self.candidates if each.stage)

    @property
    def by_chance(self) -> bool:
        """Whether another one could have won."""
        return len(self.winners) > 1

    @property
    def refusal(self) -> tuple[int, str, Source] | None:
        """Status, message and who refused; `None` where a backend was chosen."""
        match self.verdict:
            case Denied(source, status, message):
                return status, message, source
            case Empty(source=source):
                return 503, f"`{source}` leaves nothing that may serve the request", source
            case _:
                return None

    @property
    def reasons(self) -> list[str]:
        """Say of each backend that was dropped by what and why; then what was not known."""
        said = [
            f"{each.target.id} dropped by {each.dropped_by or 'its state'}: {each.reason}"
            for each in self.candidates
            if not each.stage
        ]
        if isinstance(self.verdict, Denied):
            return said
        said += [f"guard {source} holds" for source in self.verdict.guards]
        return said + [f"{name} is not known" for name in self.verdict.unknown]

    def to_json(self) -> Json:
        """Return it in the shape of `/debug/route`."""
        facts, source = self.facts, self.verdict.source
        shown: Json = {
            "model": facts.model,
            "tenant": facts.tenant,
            "api": facts.api,
            "stream": facts.stream,
            "input_tokens": facts.input_tokens,
            "tags": {name: truth.value for name, truth in facts.tags.items()},
            "policy": source.policy,
            "rule": source.rule,
            "stage": source.part if isinstance(self.verdict, Chosen) else "",
        }
        if self.refusal is not None:
            status, message, _ = self.refusal
            reason = "denied" if isinstance(self.verdict, Denied) else "no_candidate"
            shown["refusal"] = {
                "status": status,
                "reason": reason,
                "message": message,
                "by": str(source),
            }
        elif self.ranked:
            shown["decision"] = self._decision()
        if not isinstance(self.verdict, Denied):
            shown["guards"] = [str(guard) for guard in self.verdict.guards]
            shown["unknown"] = list(self.verdict.unknown)
            shown["shadow"] = dict(self.verdict.shadow)
        shown["candidates"] = [self._candidate(each) for each in self.candidates]
        return shown

    def _decision(self) -> Json:
        winner, *others = self.ranked
        return {
            **_named(winner.target),
            "fallbacks": [each.target.id for each in others],
            "by_chance_among": [_named(each) for each in self.winners] if self.by_chance else [],
        }

    def _candidate(self, each: Candidate) -> Json:
        measured = {name: self.cluster.value(each.place, m) for m, name in RECORDED_AS.items()}
        return {
            **_named(each.target),
            "pools": sorted(each.target.pools),
            "stage": each.stage or None,
            "dropped_by": each.dropped_by or None,
            "reason": each.reason or None,
            **measured,
        }


def _named(target: Target) -> Json:
    return {"id": target.id, "model": target.model, "type": target.type.value}


def tried(policies: Sequence[InferencePolicy], cluster: Cluster, facts: RequestFacts) -> Trial:
    """Return what the policies say of a request on a cluster."""
    inventory = cluster.inventory
    plan = compile_(policies).bind(inventory).plan(facts, cluster.pools)
    if isinstance(plan, Denied):
        return Trial(facts, cluster, plan, (), ())
    # Numbers of our own and the same each time: no explanation changes from call to call.
    verdicts = [
        plan.decide(cluster.measured, random.Random(chance), cluster.out)
        for chance in range(CHANCES)
    ]
    winners = dict.fromkeys(v.ranked[0].target for v in verdicts if isinstance(v, Chosen))
    verdict = verdicts[0]
    return Trial(
        facts,
        cluster,
        verdict,
        tuple(_candidates(cluster, verdict, inventory.meant(facts.model))),
        tuple(inventory.targets[place] for place in winners),
    )


def _candidates(
    cluster: Cluster, verdict: Chosen | Empty, meant: frozenset[ModelName]
) -> list[Candidate]:
    targets = cluster.inventory.targets
    ranked = verdict.ranked if isinstance(verdict, Chosen) else ()
    found = [Candidate(each.target, targets[each.target], each.stage) for each in ranked]
    found += [
        Candidate(each.target, targets[each.target], "", str(each.source), each.why)
        for each in verdict.dropped
    ]
    there = {each.place for each in found}
    asked = meant | {each.target.model for each in found}
    return found + [
        Candidate(place, target, "", "", UNAVAILABLE)
        for place, target in enumerate(targets)
        if cluster.out >> place & 1 and place not in there and target.model in asked
    ]
