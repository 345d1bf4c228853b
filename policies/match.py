"""Whether a request is what a policy asks for, in three-valued logic. Compiled once. Pure.

Of targets it knows only what `Meant` says about the requested model. It never asks a measurement.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from policies.facts import Pools, RequestFacts, Truth
from policies.globs import compile_glob
from policies.model import Match, PoolState, Tags, Threshold

TRUE, FALSE, UNKNOWN = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN


@dataclass(frozen=True, slots=True)
class Meant:
    """What a requested name, alias or class means in one inventory."""

    names: tuple[frozenset[str], ...] = ()
    """For each model that is meant, all that it is called."""
    pools: frozenset[str] = frozenset()
    """Pools of the engines that serve one of them."""
    targets: int = 0
    """Engines and providers that serve one of them, as a bit mask."""


class Asked(msgspec.Struct, frozen=True):
    """One request, and the cluster as it stands."""

    facts: RequestFacts
    pools: Pools
    meant: Meant


Test: TypeAlias = Callable[[Asked], Truth]


class Condition:
    """One entry of `matches`, or one `if`: all its fields must hold."""

    __slots__ = ("_named", "_others", "_tags", "headers", "truth")

    def __init__(self, match: Match) -> None:
        self.headers = frozenset(name.lower() for name in match.headers or ())
        self._tags = tags_of(match)
        self._named = tuple(_named(match))
        self._others = tuple(_others(match))
        # Cheap ones first: the first FALSE ends the look.
        tests = (*self._named, *_headers(match), *_tags(match), *(t for _, t in self._others))
        self.truth: Test = tests[0] if len(tests) == 1 else _all(tests)
        """Says whether a request is so: FALSE when one field is, TRUE when all are."""

    def concerns(self, asked: Asked) -> bool:
        """Whether it can hold for any request of this one's tenant, API and kind of answer."""
        return all(test(asked) is TRUE for test in self._named)

    def unknown(self, asked: Asked) -> Iterator[str]:
        """Name what is asked for and not known."""
        for tag in self._tags:
            if asked.facts.tags.get(tag, UNKNOWN) is UNKNOWN:
                yield f"tag {tag}"
        for name, test in self._others:
            if test(asked) is UNKNOWN:
                yield name


def in_bounds(threshold: Threshold) -> Callable[[float], bool]:
    """Return a test whether a number is within all bounds that are given."""
    more, least = threshold.greater_than, threshold.at_least
    less, most = threshold.less_than, threshold.at_most
    return lambda number: (
        (more is None or number > more)
        and (least is None or number >= least)
        and (less is None or number < less)
        and (most is None or number <= most)
    )


def _all(tests: tuple[Test, ...]) -> Test:
    def test(asked: Asked) -> Truth:
        truth = TRUE
        for each in tests:
            one = each(asked)
            if one is FALSE:
                return FALSE
            if one is UNKNOWN:
                truth = UNKNOWN
        return truth

    return test


def only_more(threshold: Threshold) -> float | None:
    """Return the bound of a threshold that has no other than `greaterThan`: nearly all have not."""
    others = (threshold.at_least, threshold.less_than, threshold.at_most)
    return threshold.greater_than if others == (None, None, None) else None


# --- two-valued: what a request always says of itself ---------------------------------------------


def _named(match: Match) -> Iterator[Test]:
    if match.stream is not None:
        wanted = match.stream
        yield lambda asked: TRUE if asked.facts.stream == wanted else FALSE
    if match.tenant is not None:
        tenant = compile_glob(match.tenant)
        yield lambda asked: TRUE if tenant(asked.facts.tenant) else FALSE
    if match.api is not None:
        api = compile_glob(match.api)
        yield lambda asked: TRUE if api(asked.facts.api) else FALSE


def _headers(match: Match) -> Iterator[Test]:
    for name, pattern in (match.headers or {}).items():
        yield _header(name.lower(), pattern)


def _header(name: str, pattern: str) -> Test:
    glob = compile_glob(pattern)

    def test(asked: Asked) -> Truth:
        value = asked.facts.headers.get(name)
        return FALSE if value is None or not glob(value) else TRUE

    return test


# --- tags -----------------------------------------------------------------------------------------


def tags_of(match: Match) -> tuple[str, ...]:
    """Return the tags that a condition asks for."""
    single = () if match.tag is None else (match.tag,)
    tags = match.tags or Tags()
    return (*single, *tags.all, *tags.any, *tags.none)


def _tags(match: Match) -> Iterator[Test]:
    if match.tag is not None:
        yield _has(match.tag)
    if match.tags is None:
        return
    yield from map(_has, match.tags.all)
    yield from map(_lacks, match.tags.none)
    if match.tags.any:
        yield _has_any(match.tags.any)


def _has(tag: str) -> Test:
    return lambda asked: asked.facts.tags.get(tag, UNKNOWN)


def _lacks(tag: str) -> Test:
    inverse = {TRUE: FALSE, FALSE: TRUE, UNKNOWN: UNKNOWN}
    return lambda asked: inverse[asked.facts.tags.get(tag, UNKNOWN)]


def _has_any(tags: tuple[str, ...]) -> Test:
    def test(asked: Asked) -> Truth:
        states = [asked.facts.tags.get(tag, UNKNOWN) for tag in tags]
        return TRUE if TRUE in states else UNKNOWN if UNKNOWN in states else FALSE

    return test


# --- what else may be unknown ---------------------------------------------------------------------


def _others(match: Match) -> Iterator[tuple[str, Test]]:
    if match.model is not None:
        yield "model", _model(match.model)
    if match.input_tokens is not None:
        yield "inputTokens", _input_tokens(match.input_tokens)
    if match.pool is not None:
        name = match.pool.name
        yield "pool" if name is None else f"pool {name}", _pool(match.pool)


def _model(pattern: str) -> Test:
    """Which of the models that are meant serves it, is open: TRUE only where it fits them all."""
    glob = compile_glob(pattern)

    def test(asked: Asked) -> Truth:
        if glob(asked.facts.model):
            return TRUE
        fits = [any(map(glob, names)) for names in asked.meant.names]
        return FALSE if True not in fits else UNKNOWN if False in fits else TRUE

    return test


def _input_tokens(threshold: Threshold) -> Test:
    within = in_bounds(threshold)

    def test(asked: Asked) -> Truth:
        count = asked.facts.input_tokens
        return UNKNOWN if count is None else TRUE if within(count) else FALSE

    return test


def _pool(wanted: PoolState) -> Test:
    yes, no = (TRUE, FALSE) if wanted.saturated else (FALSE, TRUE)

    def test(asked: Asked) -> Truth:
        names = asked.meant.pools if wanted.name is None else (wanted.name,)
        states = [asked.pools.get(name) for name in names]
        if False in states:  # one pool that can take more is enough
            return no
        return yes if states and None not in states else UNKNOWN

    return test
