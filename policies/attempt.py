"""A rule over one inventory, and what its route leaves for one request before measuring. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from policies.compiled import CompiledDrop, CompiledRule
from policies.drop import BoundDrop
from policies.masks import Masks
from policies.model import Stage
from policies.stage import BoundStage
from policies.verdict import DEFAULT, Source


class BoundRule:
    """A rule over one inventory; without a rule, the default route."""

    def __init__(self, compiled: CompiledRule | None, masks: Masks) -> None:
        self.compiled = compiled
        self.source = compiled.source if compiled else DEFAULT
        route = compiled.rule.route if compiled else None
        self.protects = compiled is not None and compiled.protects
        self.routes = route is not None
        self.guards = _bound(compiled.guards, masks) if compiled else ()
        self.excludes = _bound(compiled.excludes, masks) if compiled else ()
        self.set = route.set if route else None
        self.considered: int | None = None
        """`None`: what the request means."""
        if route and route.consider is not None:
            self.considered = masks.consider(route.consider)
        self.within = masks.all if compiled else masks.local
        """What it takes of that."""
        written = (
            [(f"select[{place}]", each) for place, each in enumerate(route.select)] if route else []
        )
        self.stages = tuple(
            BoundStage(name, stage, masks) for name, stage in written or [("default", Stage())]
        )
        self.sources = {
            stage.name: Source(self.source.policy, self.source.rule, stage.name)
            for stage in self.stages
        }
        """What a choice of each stage is put down to."""
        self.staged = 0
        """What is in some stage."""
        for stage in self.stages:
            self.staged |= stage.mask

    def candidates(self, meant: int) -> int:
        """Return the targets that its route is about."""
        return meant & self.within if self.considered is None else self.considered


class Attempt(msgspec.Struct, frozen=True):
    """One route to try, after all that is excluded without measuring."""

    rule: BoundRule
    drops: tuple[BoundDrop, ...]
    """The excludes met so far, then the guards that hold."""
    candidates: int
    taken: tuple[tuple[int, int], ...]
    """What is excluded already: the number of the drop, and its targets."""
    unstaged: int
    """What is not excluded, but in no stage."""
    alive: int
    """What is left."""


def attempts(
    routes: Iterable[BoundRule], guards: Sequence[BoundDrop], meant: int
) -> Iterator[Attempt]:
    """Exclude for each route in turn what can be excluded without measuring."""
    excludes: list[BoundDrop] = []
    for rule in routes:
        excludes += rule.excludes  # carried on to the routes after it
        drops = (*excludes, *guards)
        candidates = left = rule.candidates(meant)
        taken = []
        for number, drop in enumerate(drops):
            hits = 0 if drop.measures else left & drop.mask
            if hits:
                left &= ~hits
                taken.append((number, hits))
        alive = left & rule.staged
        yield Attempt(rule, drops, candidates, tuple(taken), left & ~alive, alive)


def _bound(drops: Iterable[CompiledDrop], masks: Masks) -> tuple[BoundDrop, ...]:
    return tuple(BoundDrop(drop, masks) for drop in drops)
