"""Random policies, inventories, requests and measurements, of so few names that they meet.

Names repeat on purpose: a pool's name is in selectors, orders and splits; a class is asked for as a
model; tags are in guards, in matches and in requests. Every function takes the generator that it
draws from: `scenes` gives them one of hypothesis, whose failures shrink; a seeded one is faster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from lineside.ids import ModelName
from policies.facts import Inventory, Measured, Model, Pools, RequestFacts, Target, Truth
from policies.model import (
    BackendSelector,
    BackendType,
    Consider,
    Drop,
    Exclude,
    InferencePolicy,
    Match,
    Measure,
    Metadata,
    Mode,
    ModelSelector,
    OnEmpty,
    PolicySpec,
    PoolState,
    Reject,
    Route,
    Rule,
    SetFields,
    Share,
    Stage,
    Tags,
    Threshold,
)

MODELS = (
    Model(ModelName("glm"), frozenset({"chat"}), frozenset({"large"}), {"family": "glm"}),
    Model(ModelName("qwen"), frozenset(), frozenset({"large", "open"}), {"family": "qwen"}),
    Model(ModelName("qwen-mini"), frozenset({"fast"}), frozenset({"open"}), {"family": "qwen"}),
)
CALLED = ("glm", "qwen", "qwen-mini", "chat", "fast", "large", "open", "elsewhere")
MODEL_GLOBS = (*CALLED[:-1], "qwen*", "*", "*mini", "nothing")
PROVIDERS = ("bedrock", "databricks")
BACKENDS = ("e0", "e1", "e2", *PROVIDERS)
BACKEND_GLOBS = (*BACKENDS, "east", "e*", "*s*", "*", "nothing")
POOLS = ("east", "west")
TAGS = ("pii", "low", "code")
TENANTS = ("team-a", "team-b")
LABELS: tuple[Mapping[str, str], ...] = ({}, {"zone": "a"}, {"zone": "b"})
NAMES = (("a", "z"), ("a", "b"), ("b", "a"), ("c", "c"), ("a-b", "x"))
"""Namespaces and names. That of `a-b/x` sorts before `a/b` as a text, and after it as a pair."""
THRESHOLDS = (
    "queued_prompts",
    "running_prompts",
    "kv_cache_usage",
    "gpu_utilization",
    "predicted_ttft",
    "predicted_e2e",
    "uncached_tokens",
    "cost",
    "freshness",
)
HEADERS = ("x-beta", "x-region")
NUMBERS = (0.0, 1.0, 2.0, 3.0)
"""Few, so that bounds are met exactly and ties occur."""


@dataclass(frozen=True)
class State:
    """What is measured of each target at one moment, by place."""

    columns: Mapping[Measure, Sequence[float | None]]
    ranking: Sequence[float | None]

    def measured(self) -> Measured:
        """Return it as evaluation asks for it."""
        return Measured(
            lambda measure, places: [self.columns[measure][place] for place in places],
            lambda places: [self.ranking[place] for place in places],
        )


T = TypeVar("T")


@dataclass(frozen=True)
class Scene:
    """All that a verdict depends on."""

    policies: list[InferencePolicy]
    inventory: Inventory
    request: RequestFacts
    pools: Pools
    state: State
    out: frozenset[int] = frozenset()
    """Targets that cannot serve now."""


@st.composite
def scenes(draw: st.DrawFn, modes: Sequence[Mode] = (Mode.ENFORCE,)) -> Scene:
    """Draw a scene that shrinks."""
    return scene(draw(st.randoms(use_true_random=False)), modes)


def scene(rng: Random, modes: Sequence[Mode] = (Mode.ENFORCE,)) -> Scene:
    """Draw a scene."""
    known = inventory(rng)
    out = frozenset(at for at in range(len(known.targets)) if rng.randrange(10) == 9)
    return Scene(policies(rng, modes), known, request(rng), pools(rng), state(rng, known), out)


# --- the cluster ----------------------------------------------------------------------------------


def inventory(rng: Random) -> Inventory:
    """Draw a few engines and providers, each with one or two models; now and then none."""
    targets: list[Target] = []
    for name in rng.sample(BACKENDS, rng.choice((0, 3, 4, 5, 5, 5))):
        provider = name in PROVIDERS
        in_pools = frozenset() if provider else frozenset(_some(rng, POOLS))
        kind = BackendType.PROVIDER if provider else BackendType.LOCAL
        labels = rng.choice(LABELS)
        targets += (
            Target(name, kind, model.name, in_pools | {name}, labels, in_pools)
            for model in rng.sample(MODELS, rng.choice((1, 2, 3)))
        )
    return Inventory(
        tuple(targets), {m.name: m for m in MODELS if any(t.model == m.name for t in targets)}
    )


def state(rng: Random, of: Inventory) -> State:
    """Draw measurements of an inventory's targets, some of them unknown."""

    def column() -> list[float | None]:
        return [rng.choice((None, *NUMBERS)) for _ in of.targets]

    return State({measure: column() for measure in Measure}, column())


def pools(rng: Random) -> Pools:
    """Draw which pools are saturated; one that is left out is unknown."""
    return {name: rng.choice((True, False)) for name in _some(rng, POOLS)}


# --- requests -------------------------------------------------------------------------------------


def request(rng: Random) -> RequestFacts:
    """Draw a request."""
    return RequestFacts(
        model=rng.choice(CALLED),
        tenant=rng.choice(TENANTS),
        api=rng.choice(("openai-chat", "openai-completions")),
        stream=rng.choice((True, False)),
        input_tokens=rng.choice((None, 0, 1, 2, 3)),
        tags={tag: rng.choice(list(Truth)) for tag in _some(rng, TAGS)},
        headers={name: rng.choice(("", "on", "eu")) for name in _some(rng, HEADERS)},
        conversation=rng.choice(("c1", "c2", "c3", "c4")),
    )


# --- policies -------------------------------------------------------------------------------------


def policies(rng: Random, modes: Sequence[Mode] = (Mode.ENFORCE,)) -> list[InferencePolicy]:
    """Draw policies with different names, in any order."""
    names = rng.sample(NAMES, rng.choice((0, 1, 2, 3, 4)))
    return [
        InferencePolicy(
            api_version="kinference.buoyant.io/v1alpha1",
            metadata=Metadata(namespace=namespace, name=name),
            spec=_spec(rng, modes),
        )
        for namespace, name in names
    ]


def _spec(rng: Random, modes: Sequence[Mode]) -> PolicySpec:
    rules = tuple(rule(rng, f"r{number}") for number in range(rng.choice((1, 1, 2, 3))))
    return PolicySpec(priority=rng.choice((0, 0, 0, 1, -1)), mode=rng.choice(modes), rules=rules)


def rule(rng: Random, name: str) -> Rule:
    """Draw a rule."""
    return Rule(
        name=name,
        matches=_maybe(
            rng, 0.5, lambda: tuple(match(rng) for _ in range(rng.choice((0, 1, 1, 2))))
        ),
        route=_maybe(rng, 0.9, lambda: route(rng)),
        reject=_maybe(rng, 0.05, lambda: Reject(status=451, message="no")),
    )


def match(rng: Random) -> Match:
    """Draw an entry of `matches`, or an `if`, of few fields, most often a tag."""
    drawn: dict[str, Callable[[], object]] = {
        "model": lambda: rng.choice(MODEL_GLOBS),
        "tag": lambda: rng.choice(TAGS),
        "tags": lambda: Tags(all=_some(rng, TAGS), any=_some(rng, TAGS), none=_some(rng, TAGS)),
        "tenant": lambda: rng.choice((*TENANTS, "team-*", "*", "other")),
        "headers": lambda: {rng.choice(("x-beta", "X-Region")): rng.choice(("on", "*", "e*"))},
        "api": lambda: rng.choice(("openai-chat", "openai-*", "*-completions")),
        "stream": lambda: rng.choice((True, False)),
        "input_tokens": lambda: threshold(rng),
        "pool": lambda: PoolState(
            name=rng.choice((None, *POOLS, "other")), saturated=rng.choice((True, False))
        ),
    }
    fields = rng.choice((["tag"], rng.sample(sorted(drawn), rng.choice((0, 1, 1, 2)))))
    return Match(**{field: drawn[field]() for field in fields})


def threshold(rng: Random) -> Threshold:
    """Draw bounds, mostly one."""
    kinds = ("greater_than", "at_least", "less_than", "at_most")
    bounds = {kind: rng.choice(NUMBERS) for kind in rng.sample(kinds, rng.choice((0, 1, 1, 1, 2)))}
    return Threshold(**bounds)


def route(rng: Random) -> Route:
    """Draw a route."""
    return Route(
        consider=_maybe(rng, 0.3, lambda: _up_to(rng, (0, 1, 1, 2), consider)),
        exclude=tuple(exclude(rng, f"x{n}") for n in range(rng.choice((0, 1, 1, 2)))),
        select=_up_to(rng, (0, 1, 2, 2, 3), stage),
        on_empty=rng.choice(list(OnEmpty)),
        set=_maybe(rng, 0.3, lambda: SetFields(max_tokens=rng.choice((10, 20)))),
    )


def exclude(rng: Random, name: str) -> Exclude:
    """Draw an exclude, with or without a condition."""
    return Exclude(name=name, if_=_maybe(rng, 0.5, lambda: match(rng)), drop=drop(rng))


def drop(rng: Random) -> Drop:
    """Draw a drop of few conditions."""
    drawn: dict[str, Callable[[], object]] = {
        "backend": lambda: backend(rng),
        "models": lambda: models(rng),
        "pools": lambda: _some(rng, (*POOLS, "*")),
        **dict.fromkeys(THRESHOLDS, lambda: threshold(rng)),
    }
    fields = rng.choice((["backend"], rng.sample(sorted(drawn), rng.choice((1, 2, 3)))))
    return Drop(**{field: drawn[field]() for field in fields})


def backend(rng: Random) -> BackendSelector:
    """Draw a selector of backends."""
    return BackendSelector(
        type=_maybe(rng, 0.7, lambda: rng.choice(list(BackendType))),
        names=_maybe(rng, 0.3, lambda: _some(rng, BACKEND_GLOBS)),
        labels=_maybe(rng, 0.2, lambda: rng.choice(LABELS)),
    )


def models(rng: Random) -> ModelSelector:
    """Draw a selector of models."""
    return ModelSelector(
        names=_maybe(rng, 0.5, lambda: _some(rng, MODEL_GLOBS)),
        classes=_maybe(rng, 0.3, lambda: _some(rng, ("large", "open", "l*"))),
        labels=_maybe(rng, 0.3, lambda: rng.choice(({}, {"family": "qwen"}))),
    )


def consider(rng: Random) -> Consider:
    """Draw an entry of `consider`."""
    return Consider(
        models=_maybe(rng, 0.5, lambda: models(rng)),
        backend=_maybe(rng, 0.5, lambda: backend(rng)),
        pools=_maybe(rng, 0.2, lambda: _some(rng, (*POOLS, "e*"))),
    )


def stage(rng: Random) -> Stage:
    """Draw a stage with at most one way to rank."""
    way: dict[str, object] = rng.choice(
        (
            dict,
            lambda: {"minimize": rng.choice(list(Measure))},
            lambda: {"maximize": rng.choice(list(Measure))},
            lambda: {"order": _some(rng, (*BACKENDS, *POOLS, "nothing"), at_most=4)},
            lambda: {"split": _up_to(rng, (1, 2, 3), share)},
        )
    )()
    return Stage(
        type=_maybe(rng, 0.4, lambda: rng.choice(list(BackendType))),
        names=_maybe(rng, 0.1, lambda: _some(rng, BACKEND_GLOBS)),
        labels=_maybe(rng, 0.1, lambda: rng.choice(LABELS)),
        models=_maybe(rng, 0.1, lambda: models(rng)),
        **way,
    )


def share(rng: Random) -> Share:
    """Draw one side of a split."""
    weight = rng.choice((0, 1, 1, 3))
    if rng.choice((True, False)):
        return Share(backend=rng.choice((*BACKENDS, *POOLS)), weight=weight)
    return Share(model=rng.choice(CALLED), weight=weight)


def _maybe(rng: Random, chance: float, make: Callable[[], T]) -> T | None:
    return make() if rng.randrange(100) >= 100 - chance * 100 else None


def _some(rng: Random, of: Sequence[str], at_most: int = 2) -> tuple[str, ...]:
    """Draw some, now and then none: an empty list names nothing."""
    count = rng.choice((0, *range(1, at_most + 1), *range(1, at_most + 1)))
    return tuple(rng.sample(of, min(len(of), count)))


def _up_to(rng: Random, counts: Sequence[int], make: Callable[[Random], T]) -> tuple[T, ...]:
    return tuple(make(rng) for _ in range(rng.choice(counts)))
