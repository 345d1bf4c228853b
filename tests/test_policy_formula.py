"""The search finds an answer wherever there is one, and only answers."""

from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.formula import (
    ANYTHING,
    FALSE,
    TRUE,
    All,
    Atom,
    Formula,
    OutOfSteps,
    Some,
    Steps,
    Variable,
    answers,
    atom,
    every,
    first,
    narrowed,
    negation,
    some,
)

A, B, C = (Variable(name, (0, 1, 2)) for name in "abc")
VARIABLES = (A, B, C)


def formula(rng: Random, depth: int = 3) -> Formula:
    if depth == 0 or rng.random() < 0.3:
        return Atom(rng.choice(VARIABLES), rng.randrange(1, 7))
    parts = tuple(formula(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 2, 3))))
    return rng.choice((All, Some))(parts)


def holds(formula: Formula, values: dict[Variable[object], int]) -> bool:
    match formula:
        case Atom(variable, mask):
            return bool(mask >> values[variable] & 1)
        case All(parts):
            return all(holds(part, values) for part in parts)
        case Some(parts):
            return any(holds(part, values) for part in parts)


def met(formulas: list[Formula]) -> set[tuple[int, ...]]:
    """Return all values that meet all formulas, found by trying them."""
    return {
        values
        for values in product(range(3), repeat=3)
        if all(holds(each, dict(zip(VARIABLES, values, strict=True))) for each in formulas)
    }


def found(formulas: list[Formula]) -> set[tuple[int, ...]]:
    """Return all values in all answers of the search."""
    steps = Steps(100_000)
    start = narrowed(ANYTHING, formulas, steps)
    values: set[tuple[int, ...]] = set()
    for masks in () if start is None else answers(start, steps):
        may = [[n for n in range(3) if masks.get(v, v.all) >> n & 1] for v in VARIABLES]
        values |= set(product(*may))
    return values


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_the_answers_are_all_values_that_meet_the_formulas(seed: int) -> None:
    rng = Random(seed)
    formulas = [formula(rng) for _ in range(rng.choice((1, 2, 4)))]
    assert found(formulas) == met(formulas)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_negation_holds_where_the_formula_does_not(seed: int) -> None:
    one = formula(Random(seed))
    assert met([negation(one)]) == set(product(range(3), repeat=3)) - met([one])


def test_formulas_are_simplified_as_they_are_made() -> None:
    a = Atom(A, 1)
    assert [every([]), every([a]), every([a, FALSE])] == [TRUE, a, FALSE]
    assert [some([]), some([a]), some([a, TRUE])] == [FALSE, a, TRUE]
    assert [atom(A, 0), atom(A, 0b111)] == [FALSE, TRUE]


def test_earlier_values_are_preferred() -> None:
    start = narrowed(ANYTHING, [Atom(A, 0b110)], Steps(10))
    assert start is not None
    assert [first(variable, start.masks) for variable in VARIABLES] == [1, 0, 0]


def test_a_search_is_cut_short() -> None:
    with pytest.raises(OutOfSteps):
        narrowed(ANYTHING, [Atom(A, 1)] * 10, Steps(9))
