"""A request of which nothing is known, and when it is what a condition asks for. Pure.

Each field that some policy asks for is a variable; its values are those that policies can tell
apart. Which of them fit is asked of the evaluator's own conditions.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from math import ceil, floor
from typing import Any, TypeVar

import msgspec

from policies.backends import APIS
from policies.facts import RequestFacts, Truth
from policies.formula import Formula, Masks, Variable, atom, every, first, some
from policies.match import Asked, Meant
from policies.mentions import Mentions
from policies.model import Match, Tags, Threshold
from policies.regions import witnesses
from policies.worlds import Held, World, held

Value = TypeVar("Value")

_TRUTHS = (Truth.FALSE, Truth.UNKNOWN, Truth.TRUE)
_FALSE, _UNKNOWN, _TRUE = 0b001, 0b010, 0b100


class Request:
    """All requests at once. What nobody asks for is as plain as can be in each answer."""

    def __init__(self, mentioned: Mentions, world: World[Any]) -> None:
        self._world = world
        self._known: dict[bytes, Held] = {}
        self._tenant = _text("tenant", mentioned.tenants, ("a-tenant",))
        self._api: Variable[str] = Variable("api", APIS if mentioned.apis else ("",))
        self._headers: dict[str, Variable[str | None]] = {
            name: Variable(("header", name), (None, *_text(name, globs, ()).values))
            for name, globs in mentioned.headers.items()
        }
        self._stream: Variable[bool] = Variable("stream", (False, True))
        self._tokens: Variable[int | None] = Variable("tokens", _counts(mentioned.input_tokens))
        self._tags: dict[str, Variable[Truth]] = {
            tag: Variable(("tag", tag), _TRUTHS) for tag in mentioned.tags
        }

    def tag(self, name: str, truth: Truth) -> Formula:
        """Say when a tag is in a state; one that nobody asks for is in any."""
        variable = self._tags.setdefault(name, Variable(("tag", name), _TRUTHS))
        return atom(variable, 1 << _TRUTHS.index(truth))

    def holds(self, match: Match) -> Held:
        """Say when a condition is true, and when it is not false."""
        fields = list(self._fields(match))
        return Held(every(each.true for each in fields), every(each.not_false for each in fields))

    def facts(self, masks: Masks, requested: str) -> RequestFacts:
        """Return the request of an answer."""
        headers = {name: first(value, masks) for name, value in self._headers.items()}
        return RequestFacts(
            model=requested,
            tenant=first(self._tenant, masks),
            api=first(self._api, masks),
            stream=first(self._stream, masks),
            input_tokens=first(self._tokens, masks),
            tags={name: first(tag, masks) for name, tag in self._tags.items()},
            headers={name: value for name, value in headers.items() if value is not None},
        )

    def _fields(self, match: Match) -> Iterator[Held]:
        if match.model is not None:
            yield self._world.requested(match.model)
        yield from self._of_tags(match)
        if match.tenant is not None:
            yield self._once(self._tenant, Match(tenant=match.tenant), _asked("tenant"))
        if match.api is not None:
            yield self._once(self._api, Match(api=match.api), _asked("api"))
        for name, glob in (match.headers or {}).items():
            value = self._headers[name.lower()]
            only = Match(headers={name: glob})
            yield self._once(value, only, _with_header(name.lower()))
        if match.stream is not None:
            yield held(self._stream, Match(stream=match.stream), _asked("stream"))
        if match.input_tokens is not None:
            only = Match(input_tokens=match.input_tokens)
            yield self._once(self._tokens, only, _asked("input_tokens"))
        if match.pool is not None:
            yield self._world.pool(match.pool)

    def _once(self, values: Variable[Value], match: Match, asked: Callable[[Value], Asked]) -> Held:
        """Ask about each value of a variable, once for all rules that say the same."""
        key = msgspec.json.encode(match)
        if key not in self._known:
            self._known[key] = held(values, match, asked)
        return self._known[key]

    def _of_tags(self, match: Match) -> Iterator[Held]:
        if match.tag is not None:
            yield self._is(match.tag, _TRUE)
        tags = match.tags or Tags()
        yield from (self._is(tag, _TRUE) for tag in tags.all)
        yield from (self._is(tag, _FALSE) for tag in tags.none)
        if tags.any:
            each = [self._is(tag, _TRUE) for tag in tags.any]
            yield Held(some(one.true for one in each), some(one.not_false for one in each))

    def _is(self, tag: str, mask: int) -> Held:
        return Held(atom(self._tags[tag], mask), atom(self._tags[tag], mask | _UNKNOWN))


def _text(name: Hashable, globs: Sequence[str], likely: Sequence[str]) -> Variable[str]:
    return Variable(name, (*witnesses(globs, likely=likely), "") if globs else ("",))


def _asked(field: str) -> Callable[[object], Asked]:
    """Return a way to ask about one field alone."""
    return lambda value: Asked(RequestFacts(**{"model": "", field: value}), {}, Meant())  # type: ignore[arg-type]


def _with_header(name: str) -> Callable[[str | None], Asked]:
    return lambda value: Asked(
        RequestFacts(model="", headers={} if value is None else {name: value}), {}, Meant()
    )


def _counts(thresholds: Iterable[Threshold]) -> tuple[int | None, ...]:
    """Return whole numbers on, between and beyond all bounds, and the unknown one."""
    asked = tuple(thresholds)
    bounds = [
        bound
        for each in asked
        for bound in (each.greater_than, each.at_least, each.less_than, each.at_most)
        if bound is not None
    ]
    near = {n for b in bounds for n in (floor(b) - 1, floor(b), ceil(b), ceil(b) + 1)}
    # A threshold without bounds still tells a number from none.
    return (*sorted(n for n in near | ({100} if asked else set()) if n >= 0), None)
