"""What policies mean, said slowly: no compiling, no bit masks, one target and one rule at a time.

Written from the text (docs/policies.md). It shares with `policies.evaluate` its types and
the hash that splits conversations, no more. Tests hold evaluation against it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policies.facts import Inventory, Model, Pools, RequestFacts, Target, Truth
from policies.model import (
    BackendSelector,
    BackendType,
    Drop,
    Exclude,
    InferencePolicy,
    Match,
    Measure,
    Mode,
    ModelSelector,
    OnEmpty,
    Rule,
    SetFields,
    Share,
    Stage,
    Threshold,
)
from policies.stage import stable_order, within
from tests.policy_strategies import State

YES, NO, UNKNOWN = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN


@dataclass
class Answer:
    """What a verdict must say; `ranked` up to ties."""

    source: str
    status: int | None = None
    """Of a `reject`; the rest is empty then."""
    ranked: list[tuple[str, set[int]]] = field(default_factory=list)
    """Stage and targets that tie, best first. None: refused."""
    dropped: dict[int, str] = field(default_factory=dict)
    guards: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    set: SetFields | None = None


@dataclass
class Evaluation:
    """One request."""

    inventory: Inventory
    request: RequestFacts
    pools: Pools
    state: State
    out: frozenset[int] = frozenset()
    unknown: set[str] = field(default_factory=set)

    def answer(self, policies: Sequence[InferencePolicy]) -> Answer:
        """Return what policies that are in force say."""
        guards: list[tuple[str, Exclude]] = []
        routes: list[tuple[str, Rule]] = []
        ended = False
        for source, rule in ordered(p for p in policies if p.spec.mode is Mode.ENFORCE):
            own = [x for x in rule.route.exclude if x.if_ is not None] if rule.route else []
            asked_for = own or rule.reject or (rule.route and not ended)
            if not asked_for or not self.matches(rule):
                continue
            if rule.reject:
                return Answer(source, status=rule.reject.status)
            guards += [(f"{source}/{x.name}", x) for x in own if self.may_be(x.if_)]
            if rule.route and not ended:
                routes.append((source, rule))
                ended = rule.route.on_empty is OnEmpty.REJECT
        if not ended:
            routes.append(("default/default", Rule(name="default")))
        answer = self.routed(routes, guards)
        answer.guards = [source for source, _ in guards]
        answer.unknown = self.unknown
        return answer

    # --- conditions -------------------------------------------------------------------------------

    def matches(self, rule: Rule) -> bool:
        """Say whether an entry is true for certain."""
        if rule.matches is None:
            return True
        truths = [conjunction(self.fields(entry)) for entry in rule.matches]
        if YES in truths:
            return True
        for entry, truth in zip(rule.matches, truths, strict=True):
            if truth is UNKNOWN:
                self.note(entry)
        return False

    def may_be(self, condition: Match | None) -> bool:
        """Say whether an `if` is true or may be."""
        assert condition
        truth = conjunction(self.fields(condition))
        if truth is UNKNOWN:
            self.note(condition)
        return truth is not NO

    def note(self, entry: Match) -> None:
        """Note what the entry asks for and is not known."""
        tags = entry.tags
        mentioned = [entry.tag, *((*tags.all, *tags.any, *tags.none) if tags else ())]
        self.unknown |= {f"tag {t}" for t in mentioned if t and self.tag(t) is UNKNOWN}
        if entry.model is not None and self.model_is(entry.model) is UNKNOWN:
            self.unknown.add("model")
        if entry.input_tokens is not None and self.request.input_tokens is None:
            self.unknown.add("inputTokens")
        if entry.pool is not None and self.saturated(entry.pool.name) is UNKNOWN:
            self.unknown.add(f"pool {entry.pool.name}" if entry.pool.name else "pool")

    def fields(self, entry: Match) -> Iterator[Truth]:
        """Say of each field whether it is true."""
        request = self.request
        if entry.model is not None:
            yield self.model_is(entry.model)
        if entry.tag is not None:
            yield self.tag(entry.tag)
        if entry.tags is not None:
            yield conjunction(map(self.tag, entry.tags.all))
            yield conjunction(negation(self.tag(tag)) for tag in entry.tags.none)
            if entry.tags.any:
                yield negation(conjunction(negation(self.tag(tag)) for tag in entry.tags.any))
        if entry.tenant is not None:
            yield truth(glob(entry.tenant, request.tenant))
        for name, pattern in (entry.headers or {}).items():
            value = request.headers.get(name.lower())
            yield truth(value is not None and glob(pattern, value))
        if entry.api is not None:
            yield truth(glob(entry.api, request.api))
        if entry.stream is not None:
            yield truth(entry.stream == request.stream)
        if entry.input_tokens is not None:
            yield bounded(request.input_tokens, entry.input_tokens)
        if entry.pool is not None:
            saturated = self.saturated(entry.pool.name)
            yield saturated if entry.pool.saturated else negation(saturated)

    def tag(self, tag: str) -> Truth:
        """Say what is known of a tag."""
        return self.request.tags.get(tag, UNKNOWN)

    def model_is(self, pattern: str) -> Truth:
        """Say whether the request is for a model that is called so."""
        if glob(pattern, self.request.model):
            return YES
        fits = {any(glob(pattern, n) for n in called(m)) for m in self.meant()}
        return {frozenset({True}): YES, frozenset({True, False}): UNKNOWN}.get(frozenset(fits), NO)

    def saturated(self, name: str | None) -> Truth:
        """Say whether all of the pools that are asked about are saturated."""
        names = {name} if name is not None else self.own_pools()
        states = [self.pools.get(each) for each in names]
        if not states:
            return UNKNOWN
        return conjunction(UNKNOWN if state is None else truth(state) for state in states)

    def own_pools(self) -> set[str]:
        """Return the pools of engines that serve what is meant."""
        targets = self.inventory.targets
        serving = [t for t in targets if t.type is BackendType.LOCAL and self.is_meant(t)]
        return {pool for target in serving for pool in target.pools}

    def meant(self) -> list[Model]:
        """Return the models that the request may mean."""
        return [m for m in self.inventory.models.values() if self.request.model in called(m)]

    def is_meant(self, target: Target) -> bool:
        """Say whether the request may mean a target's model."""
        return any(target.model == model.name for model in self.meant())

    # --- routes -----------------------------------------------------------------------------------

    def routed(
        self, routes: Sequence[tuple[str, Rule]], guards: Sequence[tuple[str, Exclude]]
    ) -> Answer:
        """Try one route after the other."""
        targets = range(len(self.inventory.targets))
        excludes: list[tuple[str, Exclude]] = []
        seen = {at for at in targets if self.is_meant(self.inventory.targets[at])}
        dropped: dict[int, str] = {}
        blamed_guard, blamed = None, None
        for source, rule in routes:
            mine = rule.route.exclude if rule.route else ()
            excludes += [(f"{source}/{x.name}", x) for x in mine if x.if_ is None]
            candidates = {at for at in targets if self.is_candidate(at, rule)}
            seen |= candidates
            staged = {at for at in candidates if self.stages_of(at, rule)}
            gone = self.drop([*excludes, *guards], candidates, staged)
            dropped = {**gone, **dropped}
            left = staged - set(gone) - self.out
            if left:
                break
            for name in [name for name, _ in guards if name in {gone.get(at) for at in staged}]:
                blamed_guard = name
            for name in [name for name, _ in excludes if name in {gone.get(at) for at in staged}]:
                blamed = name
        for at in candidates - staged:
            dropped.setdefault(at, f"{source} in no stage")
        for at in seen - candidates:
            dropped.setdefault(at, f"{source} not considered")
        ranked = list(self.rank(left, rule))
        refused = blamed_guard or blamed or source
        return Answer(
            source=f"{source}/{ranked[0][0]}" if left else refused,
            ranked=ranked,
            dropped=dropped,
            set=rule.route.set if rule.route and left else None,
        )

    def is_candidate(self, at: int, rule: Rule) -> bool:
        """Say whether a rule considers a target."""
        target = self.inventory.targets[at]
        if rule.route is None:
            return target.type is BackendType.LOCAL and self.is_meant(target)
        if rule.route.consider is None:
            return self.is_meant(target)
        return any(
            self.selects(target, entry.backend, entry.models, entry.pools)
            for entry in rule.route.consider
        )

    def selects(
        self,
        target: Target,
        backend: BackendSelector | None,
        models: ModelSelector | None,
        pools: Sequence[str] | None = None,
    ) -> bool:
        """Say whether selectors take a target."""
        model = self.inventory.models[target.model]
        in_pools = pools is None or any(glob(p, name) for p in pools for name in target.pools)
        return takes_backend(backend, target) and takes_model(models, model) and in_pools

    def drop(
        self, drops: Sequence[tuple[str, Exclude]], candidates: set[int], staged: set[int]
    ) -> dict[int, str]:
        """Say what drops which candidate: first by what it is, then by what is measured of it."""
        gone: dict[int, str] = {}
        for source, exclude in drops:
            for at in candidates - set(gone):
                if not list(bounds(exclude.drop)) and self.is_about(exclude.drop, at):
                    gone[at] = source
        for source, exclude in drops:
            for at in staged - set(gone) - self.out:
                if not list(bounds(exclude.drop)) or not self.is_about(exclude.drop, at):
                    continue
                read = {
                    name: bounded(self.state.columns[measure][at], threshold)
                    for name, measure, threshold in bounds(exclude.drop)
                }
                if conjunction(read.values()) is YES:
                    gone[at] = source
                elif conjunction(read.values()) is UNKNOWN:
                    self.unknown |= {name for name, truth in read.items() if truth is UNKNOWN}
        return gone

    def is_about(self, drop: Drop, at: int) -> bool:
        """Say whether a target is of the kind that a drop is about."""
        return self.selects(self.inventory.targets[at], drop.backend, drop.models, drop.pools)

    # --- stages -----------------------------------------------------------------------------------

    def stages_of(self, at: int, rule: Rule) -> list[int]:
        """Return the numbers of the stages that take a target."""
        target, stages = self.inventory.targets[at], stages_in(rule)
        return [n for n, (_, stage) in enumerate(stages) if self.in_stage(target, stage)]

    def in_stage(self, target: Target, stage: Stage) -> bool:
        """Say whether a stage takes a target."""
        backend = BackendSelector(type=stage.type, names=stage.names, labels=stage.labels)
        return (
            self.selects(target, backend, stage.models)
            and (stage.order is None or any(name in target.names for name in stage.order))
            and (stage.split is None or bool(self.shares_of(target, stage)))
        )

    def shares_of(self, target: Target, stage: Stage) -> list[int]:
        """Return the shares that have weight and name a target or its model."""
        model, found = self.inventory.models[target.model], []
        for number, share in enumerate(stage.split or ()):
            by_backend = share.backend is None or share.backend in target.names
            by_model = share.model is None or share.model in {model.name, *model.aliases}
            if share.weight and by_backend and by_model:
                found.append(number)
        return found

    def rank(self, left: set[int], rule: Rule) -> Iterator[tuple[str, set[int]]]:
        """Return what is left, best first, each target in its first stage."""
        for number, (name, stage) in enumerate(stages_in(rule)):
            here = {at for at in left if self.stages_of(at, rule)[0] == number}
            keys = {at: self.key(at, stage) for at in here}
            for key in sorted(set(keys.values())):
                yield name, {at for at in here if keys[at] == key}

    def key(self, at: int, stage: Stage) -> tuple[tuple[int, int], int, bool, float]:
        """Return what a target is sorted by: share and its model, position, whether measured, what.

        A conversation stays on one model of a share too, whichever others are there.
        """
        target, share, position = self.inventory.targets[at], (0, 0), 0
        if stage.split is not None:
            weighty = [each for each in stage.split if each.weight]
            order = [weighty[n] for n in stable_order(weighty, self.request.conversation)]
            named = [stage.split[number] for number in self.shares_of(target, stage)]
            models = [Share(model=each, weight=1) for each in sorted(self.inventory.models)]
            ranks = [
                models[n].model for n in stable_order(models, within(self.request.conversation))
            ]
            share = min(order.index(each) for each in named), ranks.index(target.model)
        if stage.order is not None:
            position = min(n for n, name in enumerate(stage.order) if name in target.names)
        if stage.maximize is not None:
            value = self.state.columns[stage.maximize][at]
            return share, position, value is None, -(value or 0)
        if stage.minimize in (None, Measure.PREDICTED_TTFT):
            value = self.state.ranking[at]
        else:
            value = self.state.columns[stage.minimize][at]
        return share, position, value is None, value or 0


# --- what needs no request ------------------------------------------------------------------------


def ordered(policies: Iterable[InferencePolicy]) -> list[tuple[str, Rule]]:
    """Return the rules in the order in which they count."""
    rules = [
        (-policy.spec.priority, rule.matches is None, policy.metadata, number, rule)
        for policy in policies
        for number, rule in enumerate(policy.spec.rules)
    ]
    rules.sort(key=lambda r: (r[0], r[1], r[2].namespace, r[2].name, r[3]))
    return [(f"{meta.namespace}/{meta.name}/{rule.name}", rule) for _, _, meta, _, rule in rules]


def stages_in(rule: Rule) -> list[tuple[str, Stage]]:
    """Return a rule's stages under their names."""
    written = rule.route.select if rule.route else ()
    named = [(f"select[{number}]", stage) for number, stage in enumerate(written)]
    return named or [("default", Stage())]


def takes_backend(selector: BackendSelector | None, target: Target) -> bool:
    """Say whether a selector takes a target's backend."""
    if selector is None:
        return True
    patterns = ["*"] if selector.names is None else selector.names
    return (
        selector.type in (None, target.type)
        and any(glob(pattern, name) for pattern in patterns for name in target.names)
        and has(target.labels, selector.labels)
    )


def takes_model(selector: ModelSelector | None, model: Model) -> bool:
    """Say whether a selector takes a model."""
    if selector is None:
        return True
    named = any(glob(p, n) for p in selector.names or () for n in {model.name, *model.aliases})
    classed = any(glob(p, n) for p in selector.classes or () for n in model.classes)
    free = selector.names is None and selector.classes is None
    return (free or named or classed) and has(model.labels, selector.labels)


def has(labels: Mapping[str, str], wanted: Mapping[str, str] | None) -> bool:
    """Say whether all the wanted labels are there."""
    return not wanted or set(wanted.items()) <= set(labels.items())


def called(model: Model) -> set[str]:
    """Return all that a request may call a model."""
    return {model.name, *model.aliases, *model.classes}


def bounds(drop: Drop) -> Iterator[tuple[str, Measure, Threshold]]:
    """Return the bounds of a drop by their names in documents."""
    for name, measure, threshold in (
        ("queuedPrompts", Measure.QUEUED_PROMPTS, drop.queued_prompts),
        ("runningPrompts", Measure.RUNNING_PROMPTS, drop.running_prompts),
        ("kvCacheUsage", Measure.KV_CACHE_USAGE, drop.kv_cache_usage),
        ("gpuUtilization", Measure.GPU_UTILIZATION, drop.gpu_utilization),
        ("predictedTTFT", Measure.PREDICTED_TTFT, drop.predicted_ttft),
        ("predictedE2E", Measure.PREDICTED_E2E, drop.predicted_e2e),
        ("uncachedTokens", Measure.UNCACHED_TOKENS, drop.uncached_tokens),
        ("cost", Measure.COST, drop.cost),
        ("freshness", Measure.FRESHNESS, drop.freshness),
    ):
        if threshold is not None:
            yield name, measure, threshold


def bounded(value: float | None, threshold: Threshold) -> Truth:
    """Say whether a number is within all bounds."""
    if value is None:
        return UNKNOWN
    held = [
        threshold.greater_than is None or value > threshold.greater_than,
        threshold.at_least is None or value >= threshold.at_least,
        threshold.less_than is None or value < threshold.less_than,
        threshold.at_most is None or value <= threshold.at_most,
    ]
    return truth(all(held))


def glob(pattern: str, text: str) -> bool:
    """Say whether a text fits a pattern."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.S) is not None


def truth(value: bool) -> Truth:
    """Turn a boolean into what is known for certain."""
    return YES if value else NO


def negation(value: Truth) -> Truth:
    """Return Kleene's not."""
    return {YES: NO, NO: YES, UNKNOWN: UNKNOWN}[value]


def conjunction(values: Iterable[Truth]) -> Truth:
    """Return Kleene's and: no if one is no, else unknown if one is, else yes."""
    found = set(values)
    return NO if NO in found else UNKNOWN if UNKNOWN in found else YES
