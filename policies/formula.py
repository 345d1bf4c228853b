"""Conditions over variables with few values each, and the search for values that meet them. Pure.

The search narrows what each variable may still be, and splits only where a condition asks. It
finds every answer there is or says `OutOfSteps`; it knows nothing of policies.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
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


@dataclass(frozen=True, slots=True)
class Atom:
    """The variable has one of the values in the mask."""

    variable: "Variable[object]"
    mask: int


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds. No parts: true."""

    parts: tuple["Formula", ...] = ()


@dataclass(frozen=True, slots=True)
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
    open: list[tuple[Formula, frozenset["Variable[object]"]]]
    """Each with variables that it asks about, and maybe with some that it does no more."""


ANYTHING = Narrowed({}, [])


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


def narrowed(start: Narrowed, formulas: Iterable[Formula], steps: Steps) -> Narrowed | None:
    """Draw what follows from more formulas without a guess; `None`: they contradict each other."""
    masks = dict(start.masks)
    settled = start.open
    waiting = [(each, frozenset(_variables(each))) for each in formulas]
    while waiting:
        forced: set[Variable[object]] = set()
        left: list[tuple[Formula, frozenset[Variable[object]]]] = []
        for formula, variables in waiting:
            for part in _conjuncts(_reduced(formula, masks, steps)):
                match part:
                    case Some(()):
                        return None
                    case Atom(variable, mask):
                        masks[variable] = masks.get(variable, variable.all) & mask
                        if not masks[variable]:
                            return None
                        forced.add(variable)
                    case _:
                        left.append((part, variables))
        # Only what asks about a narrower variable can say more.
        waiting = [each for each in (*settled, *left) if not forced.isdisjoint(each[1])]
        settled = [each for each in (*settled, *left) if forced.isdisjoint(each[1])]
    return Narrowed(masks, settled)


def answers(start: Narrowed, steps: Steps) -> Iterator[Masks]:
    """Yield masks of which every combination of values meets all conditions; some come twice."""
    waiting = [start]
    while waiting:
        now = waiting.pop()
        if not now.open:
            yield now.masks
            continue
        # Most conditions say what must not be, and one value of each variable meets them all.
        yield from _at_once(now, steps)
        guess = _first_atom(min((formula for formula, _ in now.open), key=_size))
        for side in (negation(guess), guess):  # the last is tried first
            after = narrowed(now, (side,), steps)
            if after is not None:
                waiting.append(after)


def _at_once(now: Narrowed, steps: Steps) -> Iterator[Masks]:
    """Yield the first value of every variable, or the last, where all conditions are met so."""
    steps.spend(len(now.open))
    for pick in (_lowest, _highest):
        if all(_is_met(each, now.masks, pick) for each, _ in now.open):
            variables = {each for _, asked in now.open for each in asked}
            picked = {each: pick(now.masks.get(each, each.all)) for each in variables}
            yield {**now.masks, **picked}
            return


def _is_met(formula: Formula, masks: Masks, pick: Callable[[int], int]) -> bool:
    """Whether the formula holds where every variable has the value that is picked for it."""
    match formula:
        case Atom(variable, mask):
            return bool(mask & pick(masks.get(variable, variable.all)))
        case All(parts):
            return all(_is_met(part, masks, pick) for part in parts)
        case Some(parts):
            return any(_is_met(part, masks, pick) for part in parts)


def first(variable: Variable[Value], masks: Masks) -> Value:
    """Return the first value that a variable may have."""
    return variable.values[_lowest(masks.get(variable, variable.all)).bit_length() - 1]


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


def _lowest(mask: int) -> int:
    return mask & -mask


def _highest(mask: int) -> int:
    return 1 << mask.bit_length() - 1


def _variables(formula: Formula) -> Iterator["Variable[object]"]:
    if isinstance(formula, Atom):
        yield formula.variable
    else:
        for part in formula.parts:
            yield from _variables(part)


def _conjuncts(formula: Formula) -> tuple[Formula, ...]:
    return formula.parts if isinstance(formula, All) else (formula,)


def _size(formula: Formula) -> int:
    return 1 if isinstance(formula, Atom) else sum(map(_size, formula.parts))


def _first_atom(formula: Formula) -> Atom:
    while not isinstance(formula, Atom):
        formula = formula.parts[0]
    return formula
