"""One try of a request at one backend, and whether another try may follow. Pure.

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
    """It did not run: no connection, or the backend said that it does not take it."""
    UNCERTAIN = "uncertain"
    """It may have run: the connection broke or timed out after the request was sent."""
    FORBIDDEN = "forbidden"
    """Bytes have reached the client, or the backend answered otherwise."""


class Fault(Enum):
    """What a failed try says of a provider, as metrics name it."""

    UNREACHABLE = "unreachable"
    """No connection: refused, not in time, no such name, or no certificate that holds."""
    BUSY = "busy"
    """It does not take more for now."""
    KEY_REFUSED = "key_refused"
    """It does not accept this gateway's key: ours to mend."""
    BROKE = "broke"
    """It hung up, was too slow, or failed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try that failed, as the decision record shows it."""

    engine: EngineId
    """The backend's id, a provider's too."""
    repeat: Repeat
    reason: str
    reached: bool = True
    """Whether there was a connection."""
    fault: Fault | None = None
    """`None`: it says nothing of the backend."""
    pause_s: float | None = None
    """How long the backend asked to be left alone."""
    waited_s: float | None = None
    """The timeout of its own that it went beyond."""


def may_repeat(failed: Sequence[Attempt]) -> bool:
    """Say whether the request may be tried once more. `failed` holds its tries so far."""
    return len(failed) < BUDGET and all(attempt.repeat is Repeat.SAFE for attempt in failed)
