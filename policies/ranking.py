"""What a route leaves for one request, best first: the best at once, the others when asked. Pure.

Nearly always nobody asks: the best gets the request, and answers it.
"""

from collections.abc import Iterator, Sequence
from typing import overload

from policies.stage import BoundStage, Columns
from policies.verdict import Ranked


class Ranking(Sequence[Ranked]):
    """The ranked targets. At least one stage must take one that is `alive`."""

    def __init__(
        self,
        stages: Sequence[BoundStage],
        alive: int,
        columns: Columns,
        ties: Sequence[float],
        conversation: str,
    ) -> None:
        self._stages, self._alive = stages, alive
        self._on = columns, ties, conversation
        self._made: Sequence[Ranked] | None = None
        self._best = next(
            best for stage in stages if (best := stage.best(alive, *self._on)) is not None
        )
        for stage in stages:
            stage.read(alive, columns)  # now: what is read later may have changed

    @property
    def _all(self) -> Sequence[Ranked]:
        if self._made is None:
            ranked: list[Ranked] = []
            alive = self._alive
            for stage in self._stages:
                ranked += stage.rank(alive, *self._on)
                alive &= ~stage.mask
            self._made = tuple(ranked)
        return self._made

    @overload
    def __getitem__(self, at: int) -> Ranked: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Ranked]: ...

    def __getitem__(self, at: int | slice) -> Ranked | Sequence[Ranked]:
        return self._best if at == 0 else self._all[at]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all)
