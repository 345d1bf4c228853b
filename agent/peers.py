"""What coordinators say they have in flight on this node's engines, kept for each other. Pure.

Written by the streams to coordinators: each keeps its own coordinator's latest word, and reads the
others'. A word goes with its stream; nothing is added up here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lineside.ids import EngineId
from lineside.signals import InFlight

MOST = 64
"""Coordinators that one is told of; an agent has no more streams either."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a coordinator said last: engines that it does not name have nothing."""

    engines: Mapping[EngineId, InFlight] = field(default_factory=dict)
    at: float | None = None
    """Monotonic seconds when it was heard; `None`: nothing was said so far."""


class Peers:
    """The words of all connected coordinators, by name. `announce` is called at every change."""

    def __init__(self, announce: Callable[[], None] = lambda: None) -> None:
        self._words: dict[str, Word] = {}
        self._announce = announce

    def enter(self, coordinator: str) -> None:
        """Note a stream; the others hear that there is one more to tell of themselves."""
        self._say(coordinator, Word())

    def say(self, coordinator: str, engines: Mapping[EngineId, InFlight], at: float) -> None:
        """Take in a coordinator's word, in place of its last one."""
        self._say(coordinator, Word(engines, at))

    def leave(self, coordinator: str) -> None:
        """Forget a coordinator whose stream ended."""
        if self._words.pop(coordinator, None) is not None:
            self._announce()

    def others(self, coordinator: str) -> dict[str, Word]:
        """Return what a coordinator is told: every word but its own."""
        names = [name for name in self._words if name != coordinator][:MOST]
        return {name: self._words[name] for name in names}

    def _say(self, coordinator: str, word: Word) -> None:
        self._words[coordinator] = word
        if len(self._words) > 1:
            self._announce()
