"""The model of a prefill, and its fit to the first tokens of one class of engines. Pure.

    own = a + c1 * u + ca * u * (overlap + u / 2) + step * steps        u: uncached tokens

Written by `predict` alone.
"""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

KILO = 1000.0
"""Tokens in which the fit counts, so that its numbers are of one size."""

STEP_TOKENS = 8192
"""Prompt tokens in one step of an engine: vLLM's usual `max_num_batched_tokens` on a server."""

PRIOR_WEIGHT = 2.0
"""What the configured rate counts for, in observations."""

FORGET = 0.997
"""Weight of all that was learned before, at each observation: about 300 of them count."""

CLIP = 3.0
"""An observation further off than so many mean errors counts as one that is just so far off."""


class Params(NamedTuple):
    """The model of one class. Seconds, and seconds per token."""

    base_s: float
    per_token_s: float
    per_pair_s: float
    """For each token and each token before it."""
    step_s: float

    def own_s(self, uncached: float, overlap: float) -> float:
        """Return the seconds from the start of a prefill to its first token.

        `uncached` may be a fraction: a block in a slow medium counts as partly uncached.
        """
        base_s, per_token_s, per_pair_s, step_s = self
        steps = 1 + uncached // STEP_TOKENS
        work_s = uncached * (per_token_s + per_pair_s * (overlap + uncached / 2))
        return base_s + work_s + step_s * steps


@dataclass(slots=True)
class Fit:
    """Least squares of relative errors over (1, u, u * (overlap + u / 2)), in `KILO` tokens.

    Old observations fade, outliers are cut, and the prior counts as a few observations for good, so
    that what a workload does not show stays what it was.
    """

    prior: tuple[float, float, float]
    step_s: float
    sums: list[float] = field(default_factory=lambda: [0.0] * 9)
    """Upper half of the sum of x * x, then the sum of x * y; both weighted."""
    error: float = 0.5
    """Mean relative error of late."""
    count: int = 0
    theta: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        self.theta = self._solved()

    def params(self) -> Params:
        """Return the model."""
        base, per_token, per_pair = self.theta
        return Params(base, per_token / KILO, per_pair / (KILO * KILO), self.step_s)

    def learn(self, uncached: float, overlap: float, own_s: float) -> None:
        """Add an observation."""
        params = self.params()
        predicted = params.own_s(uncached, overlap)
        off = (own_s - predicted) / max(predicted, _LEAST_S)
        self.error += (min(abs(off), 2.0) - self.error) / min(100, self.count + 4)
        most = CLIP * max(self.error, _LEAST_ERROR)
        weight = (min(1.0, most / abs(off)) if off else 1.0) / max(predicted, _LEAST_S) ** 2
        u = uncached / KILO
        x = (1.0, u, u * (overlap / KILO + u / 2))
        y = own_s - self.step_s * (1 + uncached // STEP_TOKENS)
        products = (*(x[i] * x[j] for i, j in _PAIRS), *(part * y for part in x))
        self.sums = [
            FORGET * old + weight * new for old, new in zip(self.sums, products, strict=True)
        ]
        self.count += 1
        self.theta = self._solved()

    def _solved(self) -> tuple[float, float, float]:
        """Return the parameters that fit best and are not negative."""
        scales = _BASE_S, 2 * self.prior[1], self.prior[1] / 10
        pulls = [PRIOR_WEIGHT / scale**2 for scale in scales]
        matrix = [[0.0] * 3 for _ in range(3)]
        for total, (i, j) in zip(self.sums, _PAIRS, strict=False):
            matrix[i][j] = matrix[j][i] = total
        right = [t + p * w for t, p, w in zip(self.sums[6:], self.prior, pulls, strict=True)]
        for i, pull in enumerate(pulls):
            matrix[i][i] += pull
        free = [0, 1, 2]
        while True:
            found = _solve([[matrix[i][j] for j in free] for i in free], [right[i] for i in free])
            if min(found) >= 0:
                solved = dict(zip(free, found, strict=True))
                return solved.get(0, 0.0), solved.get(1, 0.0), solved.get(2, 0.0)
            del free[found.index(min(found))]
            if not free:
                return self.prior


_Sum = Annotated[float, Meta(ge=-1e30, le=1e30)]


class Saved(msgspec.Struct, frozen=True):
    """What the store keeps of a fit. Bounded, for whatever may stand there."""

    sums: Annotated[tuple[_Sum, ...], Meta(min_length=9, max_length=9)]
    error: Annotated[float, Meta(ge=0, le=1e6)]
    count: Annotated[int, Meta(ge=0, le=10**12)]


_LEAST_S = 0.005
"""Errors of less are noise, whatever part of a prefill they are."""

_LEAST_ERROR = 0.02

_BASE_S = 0.05
"""How far the fixed part of a prefill may be from the prior's."""

_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a system of at most three equations whose matrix is positive definite."""
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for at in range(len(rows)):
        pivot = rows[at][at]
        rows[at] = [value / pivot for value in rows[at]]
        for other in range(len(rows)):
            if other != at and (by := rows[other][at]):
                rows[other] = [v - by * p for v, p in zip(rows[other], rows[at], strict=True)]
    return [row[-1] for row in rows]
