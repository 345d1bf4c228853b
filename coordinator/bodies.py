"""Bodies for backends: for the best that can be sent a request, and what backends refuse in them.

Pure, but for what dispatching notes here of refusals.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from coordinator.candidates import Candidate, spoken
from coordinator.canonical import BadRequest, Canonical
from coordinator.engines import EngineView
from coordinator.outgoing import body_for
from coordinator.providers.capabilities import Capabilities
from coordinator.records import Record
from coordinator.translate.requests import Untranslatable
from lineside.ids import ModelName
from policies.model import SetFields

LARGE_BYTES = 2**18
"""A larger body is read and written beside the event loop: others cost it less than 1 ms."""

CONVERTED_BYTES = 64_000
"""The same for a body that is put into another API's words: its turns cost 20 us and more each."""


@dataclass(slots=True)
class Bodies:
    """Makes each attempt's body anew."""

    capabilities: Capabilities = field(default_factory=Capabilities)

    def unmetered(self, request: Canonical, to: Candidate, asked: SetFields | None) -> bytes | None:
        """Return the body once more, for a backend that has just refused to report its usage.

        `None`: see `first`.
        """
        if is_large(request, to):
            return None
        return body_for(request, to, asked, announce=False, meter=False)

    def first(
        self,
        request: Canonical,
        candidates: Iterable[Candidate],
        asked: SetFields | None,
        record: Record,
        announces: Callable[[EngineView], bool],
        now: float,
    ) -> tuple[Candidate, bytes | None] | BadRequest | None:
        """Return the first candidate that the request can be put to, and its body.

        A large body is left to be made aside: `None`. Whether it can be is not known until then.

        Those before it are noted as passed over; if all are, what stands in the way is returned.
        `None`: there is no candidate. `announces`: whether an engine is to announce what it hits.
        """
        why = None
        for candidate in candidates:
            if is_large(request, candidate):
                return candidate, None
            try:
                announce = candidate.view is not None and announces(candidate.view)
                meter = self.capabilities.meters(candidate.target.id, now)
                return candidate, body_for(request, candidate, asked, announce, meter)
            except Untranslatable as error:
                record.passed_over[candidate.target.id] = error.message
                why = why or BadRequest(error.message, error.param)
        return why

    def each(
        self, request: Canonical, candidates: Iterable[Candidate], asked: SetFields | None
    ) -> Iterator[tuple[Candidate, bytes]]:
        """Yield the candidates that the request can be put to, each with its body.

        For gateways that may take one by themselves, or none: no engine is asked to announce.
        """
        of_engines: dict[ModelName, bytes] = {}  # which are sent the same, each by its model
        for candidate in candidates:
            body = of_engines.get(candidate.model) if candidate.type == "engine" else None
            if body is None:
                try:
                    body = body_for(request, candidate, asked, False)
                except Untranslatable:
                    continue
                if candidate.type == "engine":
                    of_engines[candidate.model] = body
            yield candidate, body


def is_large(request: Canonical, to: Candidate) -> bool:
    """Whether a body for this candidate takes so long to make that nothing should wait for it."""
    size = len(request.raw)
    if size <= CONVERTED_BYTES:
        return False
    return size > LARGE_BYTES or spoken(to.target, request.api) is not request.api
