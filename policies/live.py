"""Engines as a running coordinator shows them (`/debug/engines`), read as a state. Pure."""

from typing import Any

import msgspec

from policies.state import ClusterState, EngineState


class ShownEngine(msgspec.Struct, frozen=True):
    """One engine, as far as policies may ask. A coordinator shows more."""

    id: str
    endpoint: str = ""
    models: tuple[str, ...] = ()
    waiting: float | None = None
    running: float | None = None
    inflight: float | None = None
    kv_cache_usage: float | None = None
    wait_s: float | None = None
    age_s: float | None = None
    away: bool = False
    asleep: bool = False
    failing: bool = False

    def state(self) -> EngineState:
        """Return it as a state has it. Of a time to first token only the queue's part is known."""
        return EngineState(
            id=self.id,
            url=f"http://{self.endpoint or self.id}",
            models=self.models,
            queued_prompts=self.waiting or 0,
            running_prompts=(self.running if self.running is not None else self.inflight) or 0,
            kv_cache_usage=self.kv_cache_usage,
            predicted_ttft=self.wait_s,
            freshness=self.age_s,
            available=not (self.away or self.asleep or self.failing),
        )


def state_of(shown: Any) -> ClusterState | None:
    """Return the state of a decoded answer; `None`: it is no list of engines."""
    try:
        engines = msgspec.convert(shown, tuple[ShownEngine, ...])
    except msgspec.ValidationError:
        return None
    return ClusterState(engines=tuple(each.state() for each in engines))
