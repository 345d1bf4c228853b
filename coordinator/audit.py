"""Whether what an unsure engine's digest says proves right, request by request. Pure.

Written by the service. An agent that lost events reports less than its engine holds (see
`agent.holdings`). Two things end that. A share of the requests to such an engine ask it to announce
the blocks they hit anew, so that a prompt in use becomes known again. And once a run of requests
has reported what was predicted, the agent is told (`Vouch`), and the engine counts as live.
"""

import random
import re
from dataclasses import dataclass

from coordinator.engines import EngineView
from coordinator.records import Record
from lineside.hashing import UNIT
from lineside.ids import EngineId

AGREEING = 10
"""Requests in a row, at least one of them with a hit, that prove what is said right."""

ANNOUNCES_SINCE = (0, 26)
"""The first release of vLLM that knows `kv_cache_report_mode`."""


@dataclass(slots=True)
class _Run:
    """Requests in a row that agreed, on one generation of an engine's digest."""

    generation: str
    length: int = 0
    hits: int = 0


class Audit:
    """`share`: of requests to unsure engines, those that ask for announcements."""

    def __init__(self, share: float, rng: random.Random) -> None:
        self._share = share
        self._rng = rng
        self._runs: dict[EngineId, _Run] = {}
        self._due: dict[EngineId, str] = {}

    def asks(self, view: EngineView) -> bool:
        """Return whether a request to this engine is to ask for the blocks that it hits."""
        is_unsure = view.cache_state == "unsure" and not view.diverged
        return is_unsure and announces(view.engine.version) and self._rng.random() < self._share

    def ended(self, record: Record) -> None:
        """Take a request that was answered, if it can be compared.

        One that may hit what a request before it was about to compute cannot.
        """
        predicted, reported = record.predicted_cached_tokens, record.outcome.cached_tokens
        if record.served_by is None or predicted is None or reported is None:
            return
        if not record.speculative_tokens:
            self.compare(record.served_by.view, predicted, reported)

    def compare(self, view: EngineView, predicted: int, reported: int) -> None:
        """Take what a request's engine reported as cached, and what was predicted when it was sent.

        `view`: the engine as it was then.
        """
        engine = view.engine
        if view.cache_state != "unsure":
            self._runs.pop(engine.id, None)
            return
        run = self._runs.get(engine.id)
        if run is None or run.generation != view.generation:
            run = self._runs[engine.id] = _Run(view.generation)
        if abs(reported - predicted) > engine.stride * UNIT + (view.block_size or 0):
            run.length = run.hits = 0
            return
        run.length += 1
        run.hits += bool(predicted and reported)
        if run.length >= AGREEING and run.hits:
            self._due[engine.id] = run.generation
            run.length = run.hits = 0  # said again if it does not help

    def take_due(self) -> dict[EngineId, str]:
        """Return the engines to vouch for, with the generation that proved right; once each."""
        due, self._due = self._due, {}
        return due

    def keep(self, engines: set[EngineId]) -> None:
        """Forget engines that are gone."""
        for engine in self._runs.keys() - engines:
            del self._runs[engine]


def announces(version: str) -> bool:
    """Tell whether an engine of this release announces blocks on demand; unknown ones do not."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= ANNOUNCES_SINCE
