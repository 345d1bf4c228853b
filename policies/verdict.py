"""What the policies say about one request. Types only; made by `evaluate`.

The names in a verdict go into the decision record, so that "why" can be answered for the default as
for any rule.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from policies.facts import places
from policies.model import SetFields, Threshold


@dataclass(frozen=True, slots=True)
class Source:
    """Which part of which policy decided something: `default/burst-policy/burst-to-cloud/name`."""

    policy: str
    """`namespace/name`; `default` for the default route."""
    rule: str
    part: str = ""
    """An exclude's name, or `select[1]`."""

    def __str__(self) -> str:
        return "/".join(part for part in (self.policy, self.rule, self.part) if part)


DEFAULT = Source("default", "default")
"""The route where no rule has one: engines that serve the requested model, and no providers."""


@dataclass(frozen=True, slots=True)
class Denied:
    """A `reject` that matched."""

    source: Source
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A target that a policy took out, and why in the policy's own words."""

    target: int
    source: Source
    why: str
    """`type Local, queuedPrompts 5 > 2`, `not considered`, `in no stage`, ..."""


@dataclass(frozen=True, slots=True)
class PassedBound:
    """A bound of a drop that was passed, and what was measured of each target then."""

    field: str
    threshold: Threshold
    values: Sequence[float | None]
    """By place in the inventory."""

    def words(self, target: int) -> str:
        """Say what was measured and which bounds it passed: `queuedPrompts 5 > 2`."""
        value, threshold = self.values[target], self.threshold
        bounds = (
            (">", threshold.greater_than),
            (">=", threshold.at_least),
            ("<", threshold.less_than),
            ("<=", threshold.at_most),
        )
        said = [f"{sign} {number(bound)}" for sign, bound in bounds if bound is not None]
        return " ".join((self.field, number(value), " and ".join(said))).rstrip()


@dataclass(frozen=True, slots=True)
class Taken:
    """The targets that one part of a policy took out. Words are made only where asked for."""

    source: Source
    targets: int
    """A bit mask over the inventory."""
    words: str
    """The fixed part of the reason."""
    bounds: tuple[PassedBound, ...] = ()

    def dropped(self) -> Iterator[Dropped]:
        """Say for each target why it was dropped, in the inventory's order."""
        for target in places(self.targets):
            measured = (bound.words(target) for bound in self.bounds)
            why = ", ".join(word for word in (self.words, *measured) if word)
            yield Dropped(target, self.source, why)


def number(value: float | None) -> str:
    """Write a number as a person would: whole ones without a point, others to six digits."""
    if value is None:
        return "unknown"
    return str(int(value)) if value == value // 1 and abs(value) < 1e15 else f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class Ranked:
    """A target that may get the request."""

    target: int
    stage: str
    """`select[0]`, or `default`."""


class Chosen(msgspec.Struct, frozen=True):
    """The ranked targets, best first: the winner and its ordered fallbacks."""

    source: Source
    """Policy and rule of the route, and the winner's stage."""
    ranked: Sequence[Ranked]
    taken: tuple[Taken, ...] = ()
    """Each target that was dropped is in one of them."""
    set: SetFields | None = None
    guards: tuple[Source, ...] = ()
    """Guards whose condition held (or was unknown: then `unknown` says so)."""
    unknown: tuple[str, ...] = ()
    """Measurements and tags that were not known where a condition asked for them."""
    shadow: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By shadow policy: what it would have chosen, in one sentence."""

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Each target that was dropped, and why. Made anew each time."""
        return tuple(each for taken in self.taken for each in taken.dropped())


class Empty(msgspec.Struct, frozen=True):
    """No target was left, and why each was dropped."""

    source: Source
    """What refused: the last of the excludes, then guards, that took a target, else the route."""
    taken: tuple[Taken, ...] = ()
    guards: tuple[Source, ...] = ()
    unknown: tuple[str, ...] = ()
    shadow: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Each target that was dropped, and why. Made anew each time."""
        return tuple(each for taken in self.taken for each in taken.dropped())
