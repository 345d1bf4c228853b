"""Who may count a message's tokens: engines, else we by an exact tokenizer, else providers.

It is decided as the message itself would be: whatever keeps that from a backend keeps its count
from it, too. Nothing is accounted. No sockets here: doors ask.
"""

from dataclasses import dataclass
from functools import partial

from coordinator.candidates import Candidate, Provider
from coordinator.canonical import Canonical, Changes, rewrite
from coordinator.engines import Engine
from coordinator.refusal import Reply
from coordinator.service import Service
from coordinator.tokens.tokenized import TokenState
from lineside.ids import TenantId

WITHOUT_ROOM = frozenset({"overloaded", "no_engine_ready"})
"""Refusals of a message for want of room or engines: a count needs neither."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Who may, each in the order in which the message would be sent to them."""

    engines: tuple[Candidate, ...]
    own: int | None
    """What we count ourselves; `None`: not exactly."""
    providers: tuple[Candidate, ...]


async def counters(service: Service, request: Canonical, tenant: TenantId) -> Counters | Reply:
    """Return who may count, or why the message would not be sent anywhere."""
    record = await service.dry_run(request, tenant)
    if record.refusal is not None and record.refusal.reason not in WITHOUT_ROOM:
        return record.refusal
    ranked = record.decision.ranked if record.decision is not None else ()
    is_exact = record.tokens == TokenState.EXACT.value
    return Counters(
        engines=tuple(each for each in ranked if isinstance(each.target, Engine)),
        own=record.prompt_tokens if is_exact else None,
        providers=tuple(
            each
            for each in ranked
            if isinstance(each.target, Provider) and each.target.dialect.count_path is not None
        ),
    )


async def body_to_count(service: Service, request: Canonical, by: Candidate) -> bytes:
    """Return the body for one of them."""
    target = by.target
    is_foreign = isinstance(target, Provider)
    model = target.upstream[by.model] if isinstance(target, Provider) else by.model
    changes = Changes(model, meter=False, foreign=is_foreign)
    return await service.heavy.run(partial(rewrite, request, changes), len(request.raw))
