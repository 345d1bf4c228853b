"""What a coordinator tells an agent to read, and how to make keys of it. Types only."""

from dataclasses import dataclass

from lineside.ids import EngineId, PodIdent


@dataclass(frozen=True, slots=True)
class Scheme:
    """How block keys are made. Another one starts a new generation of every engine."""

    unit: int
    hash: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Scheme(unit={self.unit}, hash={self.hash!r})"  # the secret stays out of logs


@dataclass(frozen=True, slots=True)
class AssignedEngine:
    """One engine to read. Empty `events`: it publishes none; empty `replay`: it cannot repeat."""

    id: EngineId
    base_url: str
    rank: int = 0
    events: str = ""
    replay: str = ""
    events_bind: bool = False
    topic: str = ""
    stride: int = 4
    version: str = ""
    pod: PodIdent | None = None
    """That its server runs in; `None`: in none, or in one that is not known."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The engines of this node, according to one coordinator.

    Replaces what the same coordinator said before, whatever its revision: a coordinator that lost
    its store counts anew. Of several coordinators' words the highest revision counts.
    """

    coordinator: str
    revision: int
    engines: tuple[AssignedEngine, ...]
