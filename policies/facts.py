"""What policies are evaluated on: a request, the cluster's targets, and their measurements. Types.

Values are immutable and know nothing of the coordinator; it fills them in. `None`: not known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import compress
from typing import TypeAlias

import msgspec

from lineside.ids import ModelName
from policies.model import BackendType, Measure


class Truth(Enum):
    """Three-valued logic, Kleene's. Also what is known of a tag: present, absent, unknown."""

    TRUE = "present"
    FALSE = "absent"
    UNKNOWN = "unknown"


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as far as policies may ask. Content-free."""

    model: str
    """As the client wrote it: a name, an alias or a class."""
    tenant: str = ""
    api: str = ""
    stream: bool = False
    input_tokens: int | None = None
    tags: Mapping[str, Truth] = msgspec.field(default_factory=dict)
    """A tag that is not here is unknown."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By lower-case name. Only those that some policy asks for need be here."""
    conversation: str = ""
    """Stable over a conversation's turns; splits follow it."""

    def __repr__(self) -> str:
        """Show no header's value."""
        shown = {f: getattr(self, f) for f in self.__struct_fields__ if f != "headers"}
        return f"RequestFacts({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


@dataclass(frozen=True, slots=True)
class Model:
    """One model of the cluster, under all that it is called."""

    name: ModelName
    aliases: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_names(self) -> frozenset[str]:
        """What a request may call it."""
        return self.aliases | self.classes | {self.name}

    def also(
        self, aliases: Iterable[str], classes: Iterable[str], labels: Mapping[str, str]
    ) -> "Model":
        """Return it with what somebody else says of it; of two labels theirs counts."""
        return Model(
            self.name,
            self.aliases | frozenset(aliases),
            self.classes | frozenset(classes),
            {**self.labels, **labels},
        )


@dataclass(frozen=True, slots=True)
class Target:
    """One backend with one model that it serves: what a request can be sent to."""

    id: str
    """The engine's or the provider's; with the model it is unique."""
    type: BackendType
    model: ModelName
    names: frozenset[str]
    """What selectors may call the backend: provider; or pools, worker set and engine."""
    labels: Mapping[str, str] = field(default_factory=dict)
    pools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Inventory:
    """All targets at one revision, in a fixed order. A set of targets is a bit mask over it."""

    targets: tuple[Target, ...] = ()
    models: Mapping[ModelName, Model] = field(default_factory=dict)
    """Every target's model is here."""
    revision: int = 0

    def meant(self, requested: str) -> frozenset[ModelName]:
        """Return the models that a requested name, alias or class means."""
        return frozenset(m.name for m in self.models.values() if requested in m.all_names)


_BITS = bytes.maketrans(b"01", b"\x00\x01")


@lru_cache(maxsize=512)  # a few masks come with every request; those not asked for long go
def places(mask: int) -> tuple[int, ...]:
    """Return the places in a bit mask, ascending."""
    digits = f"{mask:b}"[::-1].encode().translate(_BITS)
    return tuple(compress(range(len(digits)), digits))


Pools: TypeAlias = Mapping[str, bool]
"""Whether each pool is saturated. A pool that is not here is unknown."""

Column: TypeAlias = Callable[[Measure, Sequence[int]], Sequence[float | None]]
"""Returns a measurement for each of the targets, which are places in the inventory."""


class Measured(msgspec.Struct, frozen=True):
    """The measurements of one moment, asked for as far as a verdict needs them."""

    column: Column
    ranking: Callable[[Sequence[int]], Sequence[float | None]]
    """What candidates are ordered by where a policy says `minimize: PredictedTTFT`."""
