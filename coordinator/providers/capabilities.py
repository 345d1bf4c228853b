"""Which backends refuse a part of what we ask for: it is left out next time. Pure.

Learned by asking once more without it, so that one that is updated is found out: what was learned
runs out.
"""

from lineside.ids import EngineId

KNOWN_S = 3600.0
"""Then it is tried again with all that we want."""

KEPT = 1000
"""Backends that are remembered; the first goes when there are more."""


class Capabilities:
    """Backends that refuse `stream_options`. Times are the coordinator's monotonic seconds."""

    def __init__(self) -> None:
        self._unmetered: dict[EngineId, float] = {}

    def meters(self, backend: EngineId, now: float) -> bool:
        """Whether a backend is asked for the usage of its streams."""
        return now >= self._unmetered.get(backend, now)

    def refused_usage(self, backend: EngineId, now: float) -> None:
        """Note that a backend serves a stream only without `stream_options`."""
        self._unmetered.pop(backend, None)
        if len(self._unmetered) >= KEPT:
            del self._unmetered[next(iter(self._unmetered))]
        self._unmetered[backend] = now + KNOWN_S

    def unmetered(self, now: float) -> list[EngineId]:
        """Return the backends whose streams are not asked for their usage."""
        return [backend for backend, until in self._unmetered.items() if now < until]
