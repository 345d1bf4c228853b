"""A backend that a decision looked at, with all that it was measured by. Types only.

Made for those who look at one: the winner, its fallbacks, a record that is read.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from coordinator.apis import Api
from coordinator.engines import Engine, EngineView
from coordinator.providers.dialects import Dialect
from lineside.ids import EngineId, ModelName

ASLEEP = "the engine sleeps"
"""Why an engine that could be reached gets nothing."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A third party, as an `InferenceProvider` names it."""

    id: EngineId
    base_url: str
    """What the paths of its dialect are below."""
    endpoint: str
    upstream: dict[ModelName, str] = field(default_factory=dict)
    """What it calls each model."""
    dialect: Dialect = field(default_factory=Dialect)
    timeout_s: float | None = None
    """For one whole answer. `None`: the gateway's own timeouts alone."""
    needs_key: bool = False
    """Its resource names credentials: it is sent nothing without them."""
    rank: None = None
    """Providers have none; engines do."""


Backend: TypeAlias = Engine | Provider
"""What a candidate stands for."""


def spoken(target: Backend, api: Api) -> Api | None:
    """Return the API in which a backend is asked for a client's API; `None`: it cannot serve it."""
    return api if isinstance(target, Engine) else target.dialect.spoken(api)


class Candidate(msgspec.Struct, frozen=True):  # of its many fields a dataclass takes 8 us
    """One backend with one model, as the decision saw it."""

    target: Backend
    model: ModelName
    view: EngineView | None = None
    """`None`: a provider, of which nothing is heard."""
    overlap_tokens: int = 0
    """What the index says will be read from the cache: compared with the engine's own report."""
    speculative_tokens: int = 0
    """What our own decisions in flight will have added by then; counts, and is not compared."""
    uncached_tokens: int | None = None
    own_s: float = 0.0
    wait_s: float = 0.0
    outstanding: int = 0
    recent_s: float = 0.0
    """What recent work adds to the cost."""
    cost: float | None = 0.0
    predicted_ttft_s: float | None = None
    """What is shown, and paired with the outcome; `None` where the prompt is unknown."""
    predicted_e2e_s: float | None = None
    price: float | None = None
    """Money for the whole request; `None`: no price is known."""
    pools: frozenset[str] = frozenset()
    queued: int = 0
    """Of `outstanding`, those without a first token."""
    running: int = 0
    is_full: bool = False
    """A newcomer that has had its share of what is cold: it comes after the others."""
    lean_s: float = 0.0
    """How much cheaper than its cost it ranks, for it is of this coordinator's own share."""
    stage: str = ""
    """Of the policy's route, for those that were ranked."""
    dropped_by: str = ""
    """Empty if ranked; else `away`, `asleep`, `failing`, `subset`, or a part of a policy."""
    why: str = ""
    """In the words of the policy that dropped it."""

    @property
    def type(self) -> str:
        """The kind of backend."""
        return "engine" if isinstance(self.target, Engine) else "provider"

    @property
    def cached_tokens(self) -> int:
        """What the decision counts on."""
        return self.overlap_tokens + self.speculative_tokens

    @property
    def reason(self) -> str:
        """Why it was dropped, or why its cache counted as empty."""
        if self.why or self.view is None:
            return self.why
        view = self.view
        return ASLEEP if self.dropped_by == "asleep" else view.away or view.failing or view.reason
