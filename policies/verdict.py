"""What the policies say about one request. Types and the default route; made by `evaluate`. Pure.

The names in a verdict go into the decision record, so that "why" can be answered for the default as
for any rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lineside.ids import ModelName
from policies.model import SetFields


@dataclass(frozen=True, slots=True)
class Verdict:
    """The route of one request. Candidates are ranked by predicted time to first token."""

    policy: str
    rule: str
    stage: str
    models: tuple[ModelName, ...]
    """Names whose engines are considered."""


def default_route(model: ModelName) -> Verdict:
    """Consider the engines that serve the requested model, and no providers."""
    return Verdict(policy="default", rule="default", stage="default", models=(model,))


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
    """`queuedPrompts 5 > 2`, `not considered`, `in no stage`, ..."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A target that may get the request."""

    target: int
    stage: str
    """`select[0]`, or `default`."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The ranked targets, best first: the winner and its ordered fallbacks."""

    source: Source
    """Policy and rule of the route, and the winner's stage."""
    ranked: tuple[Ranked, ...]
    dropped: tuple[Dropped, ...] = ()
    set: SetFields | None = None
    guards: tuple[Source, ...] = ()
    """Guards whose condition held (or was unknown: then `unknown_tags` says so)."""
    unknown: tuple[str, ...] = ()
    """Measurements and tags that were not known where a condition asked for them."""
    shadow: Mapping[str, str] = field(default_factory=dict)
    """By shadow policy: what it would have chosen, in one sentence."""


@dataclass(frozen=True, slots=True)
class Empty:
    """No target was left, and why each was dropped."""

    source: Source
    """The rule that refused: the one whose guard or exclude took the last one, else the route."""
    dropped: tuple[Dropped, ...] = ()
    guards: tuple[Source, ...] = ()
    unknown: tuple[str, ...] = ()
