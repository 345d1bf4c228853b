"""Whether policies can send a request with a tag to a backend that must not get it. Pure.

`holds` is said only when every way through guards, rules, stages, fallbacks and the default route
was tried for all requests and states that the policies can tell apart. A counterexample is given
only when the evaluator has chosen the forbidden backend for it. What is neither is undecided.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from policies.compiled import in_order
from policies.confirm import Reached, reached
from policies.evaluate import compile_
from policies.facts import Inventory, Truth
from policies.formula import ANYTHING, Masks, Narrowed, OutOfSteps, Steps, answers, narrowed
from policies.mentions import mentions
from policies.model import BackendSelector, BackendType, InferencePolicy, Mode
from policies.open_world import OpenWorld
from policies.reach import Ways
from policies.regions import TooMany
from policies.request import Request
from policies.worlds import KnownWorld, Scene, World

MAX_STEPS = 2_000_000
"""Parts of conditions looked at, a few seconds of work. Beyond: undecided."""

MAX_UNCONFIRMED = 50
"""Answers that the evaluator does not confirm. Beyond, the search ends: undecided."""


@dataclass(frozen=True, slots=True)
class Holds:
    """No request with the tag gets there."""

    targets: int
    """Kinds of target that were tried: without any, the claim says little."""
    unknown: "Counterexample | Undecided | None" = None
    """What is so while nobody knows whether a request has the tag; `None`: it holds then too."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A request that does, and the cluster in which it does."""

    tag: str
    truth: Truth
    reached: Reached

    @property
    def sentence(self) -> str:
        """Say it in one sentence."""
        facts, target = self.reached.facts, self.reached.target
        kind = "provider" if target.type is BackendType.PROVIDER else "engine"
        state = "with" if self.truth is Truth.TRUE else "of which nobody knows whether it has"
        turn = f" as fallback {self.reached.position}" if self.reached.position else ""
        out = " while others are not available" if self.reached.out else ""
        return (
            f"a request for `{facts.model}` {state} tag `{self.tag}` can be sent to {kind} "
            f"`{target.id}`{turn} by `{self.reached.source}`{out}"
        )


@dataclass(frozen=True, slots=True)
class Undecided:
    """Neither was shown."""

    why: str


Proof: TypeAlias = Holds | Counterexample | Undecided


def prove(
    policies: Sequence[InferencePolicy],
    tag: str,
    never: BackendSelector,
    inventory: Inventory | None = None,
) -> Proof:
    """Say whether a request with a tag can be sent to a backend that a selector takes.

    With an inventory: to one in it. Without: to any that may exist. Shadow policies do not count.
    """
    try:
        search = _Search(policies, never, inventory)
    except TooMany:
        return Undecided("the policies tell too many names apart")
    while_present = search.run(tag, Truth.TRUE)
    if not isinstance(while_present, Holds):
        return while_present
    while_unknown = search.run(tag, Truth.UNKNOWN)
    if isinstance(while_unknown, Holds):
        return while_present
    return Holds(while_present.targets, while_unknown)


class _Search:
    """All ways to all targets that must not be reached."""

    def __init__(
        self,
        policies: Sequence[InferencePolicy],
        never: BackendSelector,
        inventory: Inventory | None,
    ) -> None:
        enforced = [each for each in policies if each.spec.mode is Mode.ENFORCE]
        mentioned = mentions((*enforced, never))
        self._never = never
        self._world: World[Any] = (
            OpenWorld(mentioned) if inventory is None else KnownWorld(inventory, mentioned)
        )
        self._request = Request(mentioned, self._world)
        self._rules = in_order(enforced)
        self._policies = compile_(enforced)
        self._ways = Ways(self._rules, self._request, self._world)
        self._steps = Steps(MAX_STEPS)
        self._unconfirmed = 0

    def run(self, tag: str, truth: Truth) -> Proof:
        """Try every way for a state of the tag."""
        self._steps, self._unconfirmed = Steps(MAX_STEPS), 0
        try:
            return self._tried(tag, truth)
        except OutOfSteps:
            return Undecided(f"not settled within {MAX_STEPS} steps")

    def _tried(self, tag: str, truth: Truth) -> Proof:
        tried = 0
        for subject in self._world.subjects:
            forbidden = subject.part(backend=self._never)
            start = narrowed(ANYTHING, (forbidden, self._request.tag(tag, truth)), self._steps)
            if start is None:
                continue
            tried += 1
            for scene, masks in self._scenes(subject, start):
                facts = self._request.facts(masks, scene.requested)
                found = reached(self._policies, self._rules, scene, facts)
                if found is not None:
                    return Counterexample(tag, truth, found)
                self._unconfirmed += 1
                if self._unconfirmed >= MAX_UNCONFIRMED:
                    return _NOT_CONFIRMED
        return _NOT_CONFIRMED if self._unconfirmed else Holds(tried)

    def _scenes(self, subject: Any, start: Narrowed) -> Iterator[tuple[Scene, Masks]]:
        """Yield a cluster for every answer, over all ways to a subject."""
        common = narrowed(start, self._ways.common(subject), self._steps)
        if common is None:
            return
        for way in self._ways.to(subject):
            begun = narrowed(common, way.formulas, self._steps)
            for masks in () if begun is None else answers(begun, self._steps):
                scene = self._world.scene(subject, masks)
                if scene is not None:
                    yield scene, masks


_NOT_CONFIRMED = Undecided("a way was found that the evaluator does not take")
