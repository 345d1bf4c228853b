"""What a proof is about: a subject that must not get the request, in a cluster known or not. Pure.

A world answers in formulas whether a selector takes its subject and what a requested model means.
In a known world the subject is one target of an inventory, and most answers are plain. What is not
known is `open_world`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from policies.facts import Inventory, RequestFacts, Target, Truth
from policies.formula import (
    FALSE,
    TRUE,
    Formula,
    Masks,
    Variable,
    atom,
    every,
    first,
    negation,
    some,
)
from policies.globs import any_of
from policies.masks import Masks as Selected
from policies.match import Asked, Condition
from policies.mentions import Mentions
from policies.model import BackendSelector, BackendType, Match, ModelSelector, PoolState
from policies.regions import witnesses


class Held(NamedTuple):
    """When a condition is true, and when it is not false: true or unknown."""

    true: Formula
    not_false: Formula


Backend: TypeAlias = tuple[BackendType, str, frozenset[tuple[str, str]]]
"""What is away, asleep or failing as a whole, with each model that it serves."""


def backend_of(target: Target) -> Backend:
    """Return the backend of a target; two of one name differ by their labels, where they do."""
    return target.type, target.id, frozenset(target.labels.items())


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster and a requested model in it, as an answer of the search has them."""

    inventory: Inventory
    place: int
    """The subject's."""
    requested: str
    pools: dict[str, bool]


class Subject(Protocol):
    """A target, as selectors see it."""

    def part(
        self,
        backend: BackendSelector | None = None,
        models: ModelSelector | None = None,
        pools: tuple[str, ...] | None = None,
    ) -> Formula:
        """Say when all the given selectors take it."""

    def share(self, backend: str | None, model: str | None) -> Formula:
        """Say when it is of a backend, or of a model, by exact name."""

    def meant(self) -> Formula:
        """Say when it serves a model that the request means."""


S = TypeVar("S", bound=Subject)
Value = TypeVar("Value")


class World(Protocol[S]):
    """The cluster, and what a request's model means in it."""

    @property
    def subjects(self) -> Sequence[S]:
        """One of each kind of target that policies can tell apart."""

    def beside(self, subject: S) -> Sequence[S]:
        """Return the targets that are there whenever the subject is: its backend's other models."""

    def requested(self, glob: str) -> Held:
        """Say when a glob fits the requested model."""

    def pool(self, state: PoolState) -> Held:
        """Say when pools are in a state."""

    def scene(self, subject: S, masks: Masks) -> Scene | None:
        """Return one cluster of an answer; `None`: there is none after all."""


def held(values: Variable[Value], match: Match, asked: Callable[[Value], Asked]) -> Held:
    """Ask the evaluator's own condition about each value of a variable."""
    condition = Condition(match)
    truths = [condition.truth(asked(value)) for value in values.values]
    return Held(
        atom(values, sum(1 << n for n, truth in enumerate(truths) if truth is Truth.TRUE)),
        atom(values, sum(1 << n for n, truth in enumerate(truths) if truth is not Truth.FALSE)),
    )


class PoolStates:
    """One variable for each pool: saturated, not, or not known."""

    def __init__(self) -> None:
        self._variables: dict[str, Variable[bool | None]] = {}

    def of(self, state: PoolState, names: Sequence[str]) -> Held:
        """Say when the pools are all saturated, or one of them is not, as the state asks."""
        pools = [self._variables.setdefault(n, Variable(("pool", n), _STATES)) for n in names]
        if not pools:
            return Held(FALSE, TRUE)
        full = every(atom(pool, _FULL) for pool in pools)
        some_room = some(atom(pool, _ROOM) for pool in pools)
        if state.saturated:
            return Held(full, negation(some_room))
        return Held(some_room, negation(full))

    def read(self, masks: Masks) -> dict[str, bool]:
        """Return the state of each pool that is known in an answer."""
        states = {name: first(pool, masks) for name, pool in self._variables.items()}
        return {name: state for name, state in states.items() if state is not None}


_STATES = (None, False, True)
_ROOM, _FULL = 1 << _STATES.index(False), 1 << _STATES.index(True)


class KnownWorld:
    """An inventory, and nothing beside it."""

    def __init__(self, inventory: Inventory, mentioned: Mentions) -> None:
        self._inventory = inventory
        self._full = Selected(inventory)
        kinds = [_signature(each, mentioned) for each in inventory.targets]
        alike = {kind: place for place, kind in enumerate(kinds)}
        self._places = tuple(sorted(alike.values()))
        self._backends: list[set[Backend]] = [
            {backend_of(t) for kind, t in zip(kinds, inventory.targets, strict=True) if kind == own}
            for own in (kinds[place] for place in self._places)
        ]
        chosen = tuple(inventory.targets[place] for place in self._places)
        self.few = Selected(Inventory(chosen, inventory.models))
        """Selectors over one target of each kind."""
        names = sorted({name for each in inventory.models.values() for name in each.all_names})
        texts = witnesses((*mentioned.requested, *names), likely=names)
        self._requested: Variable[str] = Variable("model", texts)
        self._states = PoolStates()

    @property
    def subjects(self) -> Sequence["KnownSubject"]:
        """One target of each kind that policies can tell apart."""
        return [KnownSubject(self, bit) for bit in range(len(self._places))]

    def beside(self, subject: "KnownSubject") -> Sequence["KnownSubject"]:
        """Return a target for each kind that the subject's backend has; any other may be out."""
        backend = backend_of(self._inventory.targets[self._places[subject.bit]])
        return [KnownSubject(self, bit) for bit, s in enumerate(self._backends) if backend in s]

    def requested(self, glob: str) -> Held:
        """Ask the evaluator about each name that means something, and one for each other region."""
        return held(self._requested, Match(model=glob), self._asked)

    def pool(self, state: PoolState) -> Held:
        """Say when the named pool, or all pools of the requested model, are in a state."""
        if state.name is not None:
            return self._states.of(state, (state.name,))
        cases = [
            (self._when(pools), self._states.of(state, sorted(pools)))
            for pools in {self._full.meant(name).pools for name in self._requested.values}
        ]
        return Held(
            some(every((when, case.true)) for when, case in cases),
            some(every((when, case.not_false)) for when, case in cases),
        )

    def meant(self, bit: int) -> Formula:
        """Say when a request means the model of a kind of target."""
        place = self._places[bit]
        return self._where(lambda name: bool(self._full.meant(name).targets >> place & 1))

    def scene(self, subject: "KnownSubject", masks: Masks) -> Scene:
        """Return the inventory, with what the answer says of the rest."""
        requested = first(self._requested, masks)
        place = self._places[subject.bit]
        return Scene(self._inventory, place, requested, self._states.read(masks))

    def _asked(self, name: str) -> Asked:
        return Asked(RequestFacts(model=name), {}, self._full.meant(name))

    def _when(self, pools: frozenset[str]) -> Formula:
        return self._where(lambda name: self._full.meant(name).pools == pools)

    def _where(self, fits: Callable[[str], bool]) -> Formula:
        values = enumerate(self._requested.values)
        return atom(self._requested, sum(1 << n for n, name in values if fits(name)))


class KnownSubject:
    """One target of an inventory."""

    def __init__(self, world: KnownWorld, bit: int) -> None:
        self._world = world
        self.bit = bit

    def part(
        self,
        backend: BackendSelector | None = None,
        models: ModelSelector | None = None,
        pools: tuple[str, ...] | None = None,
    ) -> Formula:
        """Say whether all the given selectors take it."""
        return self._in(self._world.few.part(backend, models, pools))

    def share(self, backend: str | None, model: str | None) -> Formula:
        """Say whether it is of a backend, or of a model, by exact name."""
        return self._in(self._world.few.share(backend, model))

    def meant(self) -> Formula:
        """Say when it serves a model that the request means."""
        return self._world.meant(self.bit)

    def _in(self, mask: int) -> Formula:
        return TRUE if mask >> self.bit & 1 else FALSE


def _signature(target: Target, mentioned: Mentions) -> tuple[object, ...]:
    """Return all of a target that policies can ask for."""
    return (
        target.type,
        target.model,
        tuple(any_of((glob,))(target.names) for glob in mentioned.backends),
        tuple(any_of((glob,))(target.pools) for glob in mentioned.pools),
        tuple(target.labels.get(key) for key in mentioned.labels),
    )
