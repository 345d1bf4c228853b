"""One try of a request at one engine, and whether another try may follow. Pure.

The only place that decides about retries: one budget for each logical request, so that fallbacks
never multiply (a fallback with retries of its own would).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lineside.ids import EngineId

BUDGET = 3
"""Tries for one logical request, the first included."""


class Repeat(Enum):
    """Whether a failed try may be repeated elsewhere."""

    SAFE = "safe"
    """It did not run: no connection, or the engine said that it does not take it (503)."""
    UNCERTAIN = "uncertain"
    """It may have run: the connection broke or timed out after the request was sent."""
    FORBIDDEN = "forbidden"
    """Bytes have reached the client, or the engine answered otherwise."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try that failed, as the decision record shows it."""

    engine: EngineId
    repeat: Repeat
    reason: str
    reached: bool = True
    """Whether there was a connection."""


def may_repeat(failed: Sequence[Attempt]) -> bool:
    """Say whether the request may be tried once more. `failed` holds its tries so far."""
    return len(failed) < BUDGET and all(attempt.repeat is Repeat.SAFE for attempt in failed)
