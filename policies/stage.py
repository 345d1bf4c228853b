"""One stage of a `select`: whom it takes, and in which order. Pure.

Compiled against one inventory. Ties are broken by numbers that the caller draws, one per target.
"""

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from policies.facts import Measured, places
from policies.masks import Masks
from policies.model import BackendSelector, Measure, Share, Stage
from policies.verdict import Ranked

Values = Sequence[float | None]


class Columns:
    """The measurements of some targets, each asked for once and by place in the inventory."""

    def __init__(self, measured: Measured, targets: Sequence[int], size: int) -> None:
        self._measured, self._targets, self._size = measured, targets, size
        self._known: dict[Measure | None, Values] = {}
        self._whole = len(targets) == size

    def of(self, measure: Measure) -> Values:
        """Return one measurement."""
        if measure not in self._known:
            self._known[measure] = self._spread(self._measured.column(measure, self._targets))
        return self._known[measure]

    def ranking(self) -> Values:
        """Return what `minimize: PredictedTTFT` orders by."""
        if None not in self._known:
            self._known[None] = self._spread(self._measured.ranking(self._targets))
        return self._known[None]

    def _spread(self, values: Values) -> Values:
        if self._whole:
            return values
        column: list[float | None] = [None] * self._size
        for place, value in zip(self._targets, values, strict=True):
            column[place] = value
        return column


class BoundStage:
    """A stage over one inventory."""

    __slots__ = ("_highest", "_measure", "_models", "_order", "_ranked", "_shares", "mask", "name")

    def __init__(self, name: str, stage: Stage, masks: Masks) -> None:
        self.name = name
        self._ranked = masks.ranked(name)
        backend = BackendSelector(type=stage.type, names=stage.names, labels=stage.labels)
        self.mask = masks.part(backend=backend, models=stage.models)
        self._order: tuple[int, ...] | None = None
        self._shares: tuple[tuple[Share, int], ...] | None = None
        self._models = masks.by_model() if stage.split is not None else ()
        if stage.order is not None:
            self._order = tuple(masks.share(backend, None) for backend in stage.order)
            self.mask &= _union(self._order)
        if stage.split is not None:
            # A share without weight is switched off: it does not get fallbacks either.
            shares = [share for share in stage.split if share.weight]
            self._shares = tuple((each, masks.share(each.backend, each.model)) for each in shares)
            self.mask &= _union(mask for _, mask in self._shares)
        self._highest = stage.minimize is None and stage.maximize is not None
        self._measure = stage.minimize or stage.maximize or Measure.PREDICTED_TTFT

    def best(
        self, alive: int, columns: Columns, ties: Sequence[float], conversation: str
    ) -> Ranked | None:
        """Return the first of what `rank` returns; `None`: the stage takes no survivor.

        Nearly always it is all that anybody asks for, at a tenth of the cost.
        """
        alive &= self.mask
        if not alive:
            return None
        group = next(iter(self._groups(alive, conversation)))
        return self._ranked[self._first(places(group), columns, ties)]

    def rank(
        self, alive: int, columns: Columns, ties: Sequence[float], conversation: str
    ) -> list[Ranked]:
        """Return the survivors that the stage takes, best first."""
        alive &= self.mask
        if not alive:
            return []
        best: list[int] = []
        for group in self._groups(alive, conversation):
            best += self._sorted(places(group), columns, ties)
        return [self._ranked[place] for place in best]

    def _groups(self, alive: int, conversation: str) -> Iterable[int]:
        """Cut the survivors by share, and each share by position; all in order."""
        if self._shares is None and self._order is None:
            yield alive
            return
        for share in self._by_share(conversation, alive):
            for position in self._order or (alive,):
                group = alive & share & position
                alive &= ~group
                if group:
                    yield group

    def _by_share(self, conversation: str, alive: int) -> Iterable[int]:
        """Cut by share, and where a share has several models, by model: it stays on one as well."""
        if self._shares is None:
            yield self.mask
            return
        for number in stable_order([share for share, _ in self._shares], conversation):
            share = self._shares[number][1]
            here = [(model, mask) for model, mask in self._models if mask & share & alive]
            if len(here) < 2:
                yield share
                continue
            each = [Share(model=model, weight=1) for model, _ in here]
            yield from (
                here[place][1] & share for place in stable_order(each, within(conversation))
            )

    def read(self, alive: int, columns: Columns) -> None:
        """Have all measured that `rank` may ask for."""
        if (alive & self.mask).bit_count() > 1:
            self._values(columns)

    def _values(self, columns: Columns) -> Values:
        if self._measure is Measure.PREDICTED_TTFT and not self._highest:
            return columns.ranking()
        return columns.of(self._measure)

    def _first(self, targets: Sequence[int], columns: Columns, ties: Sequence[float]) -> int:
        """Return the first of what `_sorted` returns, without sorting."""
        if len(targets) == 1:
            return targets[0]
        values = self._values(columns)
        read = values if len(targets) == len(values) else [values[place] for place in targets]
        try:
            best = max(read) if self._highest else min(read)  # type: ignore[type-var]
        except TypeError:  # some are not known
            known = [each for each in read if each is not None]
            best = (max(known) if self._highest else min(known)) if known else None
        if read.count(best) == 1:
            return targets[read.index(best)]
        return min(
            (place for place, each in zip(targets, read, strict=True) if each == best),
            key=ties.__getitem__,
        )

    def _sorted(self, targets: Sequence[int], columns: Columns, ties: Sequence[float]) -> list[int]:
        if len(targets) < 2:
            return list(targets)
        values = self._values(columns)
        read = [values[place] for place in targets]
        if len(set(read)) < len(read):
            targets = sorted(targets, key=ties.__getitem__)  # sorting on keeps it among equals
        if None not in read:
            return sorted(targets, key=values.__getitem__, reverse=self._highest)  # type: ignore[arg-type]
        known = [place for place in targets if values[place] is not None]
        known.sort(key=values.__getitem__, reverse=self._highest)  # type: ignore[arg-type]
        return known + [place for place in targets if values[place] is None]


def stable_order(shares: Sequence[Share], conversation: str) -> list[int]:
    """Return the shares' numbers, the conversation's own first, then its fallbacks.

    Weighted rendezvous: a share's chance to come first is its part of the sum of weights, and a
    share that is taken away moves only the conversations that it had.
    """
    return sorted(range(len(shares)), key=lambda number: _distance(shares[number], conversation))


def within(conversation: str) -> str:
    """Return what a share's own models are ordered by: not as shares of the same models are."""
    return f"{conversation}\0within"


def _distance(share: Share, conversation: str) -> float:
    name = f"backend/{share.backend}" if share.model is None else f"model/{share.model}"
    digest = blake2b(
        f"{conversation}\0{name}".encode(errors="surrogatepass"), digest_size=7
    ).digest()
    uniform = (int.from_bytes(digest) + 1) / (1 << 56)
    return -math.log(uniform) / share.weight


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
