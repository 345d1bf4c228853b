"""Conditions over variables with few values each, and the search for values that meet them. Pure.

The search narrows what each variable may still be, and splits only where a condition asks. It
finds every answer there is or says `OutOfSteps`; it knows nothing of policies.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Generic[Value]):
    """Something that has one of some values; earlier ones are preferred in answers."""

    name: Hashable
    values: tuple[Value, ...]

    @property
    def all(self) -> int:
        """The mask of all its values."""
        return (1 << len(self.values)) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """The variable has one of the values in the mask."""

    variable: "Variable[object]"
    mask: int


@dataclass(frozen=True, slots=True, eq=False)
class All:
    """Every part holds. No parts: true."""

    parts: tuple["Formula", ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Some:
    """One part holds at least. No parts: false."""

    parts: tuple["Formula", ...] = ()


Formula: TypeAlias = Atom | All | Some

TRUE: Formula = All()
FALSE: Formula = Some()

Masks: TypeAlias = Mapping["Variable[object]", int]
"""What each variable may still be; one that is not here may be anything."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What variables may still be, and the conditions that this leaves open."""

    masks: dict["Variable[object]", int]
    open: list[Formula]


class OutOfSteps(Exception):
    """The search was cut short."""


class Steps:
    """What all searches of one proof may cost together, in parts of formulas looked at."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, count: int = 1) -> None:
        """Count steps; raise `OutOfSteps` when there are none left."""
        self.left -= count
        if self.left < 0:
            raise OutOfSteps


def every(parts: Iterable[Formula]) -> Formula:
    """Return the conjunction, simplified."""
    kept: list[Formula] = []
    for part in parts:
        match part:
            case Some(()):
                return FALSE
            case All(inner):
                kept.extend(inner)
            case _:
                kept.append(part)
    return kept[0] if len(kept) == 1 else All(tuple(kept))


def some(parts: Iterable[Formula]) -> Formula:
    """Return the disjunction, simplified."""
    kept: list[Formula] = []
    for part in parts:
        match part:
            case All(()):
                return TRUE
            case Some(inner):
                kept.extend(inner)
            case _:
                kept.append(part)
    return kept[0] if len(kept) == 1 else Some(tuple(kept))


def negation(formula: Formula) -> Formula:
    """Return what holds exactly where the formula does not."""
    match formula:
        case Atom(variable, mask):
            return atom(variable, variable.all & ~mask)
        case All(parts):
            return some(negation(part) for part in parts)
        case Some(parts):
            return every(negation(part) for part in parts)


def atom(variable: "Variable[object]", mask: int) -> Formula:
    """Return the condition that a variable has one of the values in a mask."""
    if mask == variable.all:
        return TRUE
    return Atom(variable, mask) if mask else FALSE


def narrowed(formulas: Iterable[Formula], masks: Masks, steps: Steps) -> Narrowed | None:
    """Draw what follows without a guess; `None`: the formulas contradict each other."""
    known = dict(masks)
    open_ = list(formulas)
    while True:
        left: list[Formula] = []
        forced = False
        for formula in open_:
            for part in _conjuncts(_reduced(formula, known, steps)):
                match part:
                    case Some(()):
                        return None
                    case Atom(variable, mask):
                        known[variable] = known.get(variable, variable.all) & mask
                        if not known[variable]:
                            return None
                        forced = True
                    case _:
                        left.append(part)
        if not forced:
            return Narrowed(known, left)
        open_ = left


def answers(start: Narrowed, steps: Steps) -> Iterator[Masks]:
    """Yield masks of which every combination of values meets all conditions."""
    waiting = [start]
    while waiting:
        now = waiting.pop()
        if not now.open:
            yield now.masks
            continue
        guess = _first_atom(min(now.open, key=_size))
        for mask in (guess.variable.all & ~guess.mask, guess.mask):  # the last is tried first
            masks = {**now.masks}
            masks[guess.variable] = masks.get(guess.variable, guess.variable.all) & mask
            after = narrowed(now.open, masks, steps)
            if after is not None:
                waiting.append(after)


def is_met(formula: Formula, masks: Masks) -> bool:
    """Whether the formula holds where every variable has the first value that it may have."""
    match formula:
        case Atom(variable, mask):
            may = masks.get(variable, variable.all)
            return bool(mask & may & -may)
        case All(parts):
            return all(is_met(part, masks) for part in parts)
        case Some(parts):
            return any(is_met(part, masks) for part in parts)


def first(variable: Variable[Value], masks: Masks) -> Value:
    """Return the first value that a variable may have."""
    may = masks.get(variable, variable.all)
    return variable.values[(may & -may).bit_length() - 1]


def _reduced(formula: Formula, known: Masks, steps: Steps) -> Formula:
    steps.spend()
    match formula:
        case Atom(variable, mask):
            may = known.get(variable)
            if may is None:
                return formula
            both = may & mask
            return TRUE if both == may else formula if both else FALSE
        case All(parts):
            return every(_reduced(part, known, steps) for part in parts)
        case Some(parts):
            return some(_reduced(part, known, steps) for part in parts)


def _conjuncts(formula: Formula) -> tuple[Formula, ...]:
    return formula.parts if isinstance(formula, All) else (formula,)


def _size(formula: Formula) -> int:
    return 1 if isinstance(formula, Atom) else sum(map(_size, formula.parts))


def _first_atom(formula: Formula) -> Atom:
    while not isinstance(formula, Atom):
        formula = formula.parts[0]
    return formula
