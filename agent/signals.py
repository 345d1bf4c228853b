"""A signal of this node with the time at which it was so. Types only."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """A value with the time at which it was so."""

    value: T
    at: float
    """Monotonic seconds of the agent; ages are computed from it."""
    unix: float
    """Unix seconds, for people."""
