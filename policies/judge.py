"""Compares what policies say of a case with what was expected. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from policies.cases import Case, Expected, Refused
from policies.globs import any_of
from policies.model import BackendSelector, InferencePolicy, Resource
from policies.state import ClusterState, changed, cluster_of
from policies.trial import Trial, tried
from policies.verdict import Chosen, Denied


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that was expected and is not so."""

    field: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.field}: expected {_words(self.expected)}, got {_words(self.got)}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A case with what came of it. Without differences it passed."""

    case: Case
    trial: Trial
    differences: tuple[Difference, ...]


def strangers(case: Case, state: ClusterState) -> list[str]:
    """Return the backends that a case changes and its state does not have."""
    there = {each.id for each in state.engines} | {each.name for each in state.providers}
    return [name for name in case.changes if name not in there]


def judge(resources: Sequence[Resource], state: ClusterState, case: Case) -> Judged:
    """Try a case and compare."""
    policies = [each for each in resources if isinstance(each, InferencePolicy)]
    cluster = cluster_of(resources, changed(state, case.changes, case.pools))
    trial = tried(policies, cluster, case.request.facts())
    return Judged(case, trial, tuple(_differences(case.expect, trial)))


def _differences(expect: Expected, trial: Trial) -> Iterator[Difference]:
    yield from _end(expect, trial)
    source = trial.verdict.source
    for name, got in (("policy", source.policy), ("rule", source.rule)):
        if (said := getattr(expect, name)) is not None and said != got:
            yield Difference(name, said, got)
    if expect.never is not None:
        reached = [each.target.id for each in trial.ranked if _takes(expect.never, each.target)]
        if reached:
            yield Difference("never", msgspec.to_builtins(expect.never), reached)
    yield from (
        Difference("reasons", part, trial.reasons)
        for part in expect.reasons
        if not any(part in reason for reason in trial.reasons)
    )
    shadow = {} if isinstance(trial.verdict, Denied) else trial.verdict.shadow
    for policy, part in expect.shadow.items():
        if part not in shadow.get(policy, ""):
            yield Difference(f"shadow of {policy}", part, shadow.get(policy))


def _end(expect: Expected, trial: Trial) -> Iterator[Difference]:
    """Compare what became of the request: a backend, or a refusal."""
    if trial.refusal is not None:
        status, message, source = trial.refusal
        got = {"status": status, "by": str(source), "message": message}
        if expect.refusal is not None:
            yield from _refusal(expect.refusal, got)
        elif (wanted := _wanted(expect)) is not None:
            yield Difference(*wanted, got)
        return
    winners = trial.winners
    if expect.refusal is not None:
        yield Difference("refusal", msgspec.to_builtins(expect.refusal), [w.id for w in winners])
    for name, these in (
        ("model", [each.model for each in winners]),
        ("backend", [each.id for each in winners]),
    ):
        if (said := getattr(expect, name)) is not None and not set(these) <= {*_tuple(said)}:
            yield Difference(name, said, these[0] if len(these) == 1 else these)
    after = [each.target.id for each in trial.ranked[1:]]
    if expect.fallbacks is not None and list(expect.fallbacks) != after:
        yield Difference("fallbacks", list(expect.fallbacks), after)
    verdict = trial.verdict
    assert isinstance(verdict, Chosen)
    if expect.stage is not None and expect.stage != verdict.source.part:
        yield Difference("stage", expect.stage, verdict.source.part)
    if expect.set is not None and expect.set != verdict.set:
        rewritten = None if verdict.set is None else msgspec.to_builtins(verdict.set)
        yield Difference("set", msgspec.to_builtins(expect.set), rewritten)


def _refusal(said: Refused, got: dict[str, Any]) -> Iterator[Difference]:
    for name in ("status", "by"):
        if (wanted := getattr(said, name)) is not None and wanted != got[name]:
            yield Difference(f"refusal.{name}", wanted, got[name])
    if said.message is not None and said.message not in got["message"]:
        yield Difference("refusal.message", said.message, got["message"])


def _wanted(expect: Expected) -> tuple[str, Any] | None:
    """Return what a refusal contradicts. One contradicts no `never`: nobody gets the request."""
    for name in ("backend", "model", "fallbacks", "stage", "set"):
        if (said := getattr(expect, name)) is not None:
            return name, msgspec.to_builtins(said)
    return None


def _takes(selector: BackendSelector, target: Any) -> bool:
    return (
        (selector.type is None or selector.type is target.type)
        and (selector.names is None or any_of(selector.names)(target.names | {target.id}))
        and all(target.labels.get(k) == v for k, v in (selector.labels or {}).items())
    )


def _tuple(said: str | tuple[str, ...]) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else said


def _words(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, tuple | list):
        return ", ".join(map(_words, value)) if value else "none"
    return msgspec.json.encode(value).decode()
