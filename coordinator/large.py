"""Bodies of large requests, made beside the event loop between the decision and the first send.

The decision accounts in one step and waits for nothing: what takes long is left to whoever sends.
"""

from functools import partial

from coordinator.fields import BadRequest
from coordinator.outgoing import body_for
from coordinator.routed import Routed
from coordinator.service import Service
from coordinator.translate.requests import Untranslatable


async def embody(service: Service, routed: Routed) -> BadRequest | None:
    """Make a request's body if it has none yet.

    Moves on from backends that it cannot be put to; if all are, returns what stands in the way.
    """
    why = None
    while routed.body is None:
        try:
            routed.body = await service.heavy.run(
                _making(service, routed), len(routed.request.raw), 0
            )
        except Untranslatable as error:
            why = why or BadRequest(error.message, error.param)
            if not service.pass_over(routed, error):
                return why
    return None


def _making(service: Service, routed: Routed) -> "partial[bytes]":
    """Return what makes the body: it reads nothing that anybody changes meanwhile."""
    candidate, capabilities = routed.candidate, service.bodies.capabilities
    announce = candidate.view is not None and service.audit.asks(candidate.view)
    meter = routed.meter and capabilities.meters(candidate.target.id, service.clock.monotonic())
    return partial(body_for, routed.request, candidate, routed.verdict.set, announce, meter)
