"""Token limits: reserve before dispatch, settle or refund after. The seam, and no limits at all.

A reservation is made once for each logical request and ends in exactly one of `settle` and
`refund`. Those two do not wait: they are called while a request is being cancelled.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from coordinator.refusal import OverLimit
from lineside.ids import ModelName, TenantId

NOBODY = TenantId("default")
"""Whose requests these are where nobody says; at our own gateway nobody can, so far."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine says it did, or what was seen of it. `None`: not known."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    partial: bool = False
    """The answer was broken off, and its tokens counted as they passed."""


class Reservation(msgspec.Struct, frozen=True):
    """Tokens set aside for one request."""

    tenant: TenantId
    model: ModelName
    input_tokens: int | None
    output_tokens: int | None


class Limiter(Protocol):
    """Keeps tenants within their limits."""

    async def reserve(
        self,
        tenant: TenantId,
        model: ModelName,
        input_tokens: int | None,
        output_tokens: int | None,
    ) -> Reservation | OverLimit:
        """Set tokens aside. `None` tokens: unknown; the limiter uses its default."""
        ...

    def settle(self, reservation: Reservation, usage: Usage) -> None:
        """Charge what was really used."""
        ...

    def refund(self, reservation: Reservation) -> None:
        """Give everything back: nothing ran."""
        ...


class Unlimited:
    """Grants everything."""

    async def reserve(
        self,
        tenant: TenantId,
        model: ModelName,
        input_tokens: int | None,
        output_tokens: int | None,
    ) -> Reservation | OverLimit:
        return Reservation(tenant, model, input_tokens, output_tokens)

    def settle(self, reservation: Reservation, usage: Usage) -> None:
        """Nothing to charge."""

    def refund(self, reservation: Reservation) -> None:
        """Nothing to give back."""
