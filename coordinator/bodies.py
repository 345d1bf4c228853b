"""Bodies for backends: for the best that can be sent a request, and what backends refuse in them.

Pure, but for what dispatching notes here of refusals.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from coordinator.candidates import Candidate
from coordinator.canonical import BadRequest, Canonical
from coordinator.engines import EngineView
from coordinator.outgoing import body_for
from coordinator.providers.capabilities import Capabilities
from coordinator.records import Record
from coordinator.translate.requests import Untranslatable
from policies.model import SetFields


@dataclass(slots=True)
class Bodies:
    """Makes each attempt's body anew."""

    capabilities: Capabilities = field(default_factory=Capabilities)

    def unmetered(self, request: Canonical, to: Candidate, asked: SetFields | None) -> bytes:
        """Return the body once more, for a backend that has just refused to report its usage."""
        return body_for(request, to, asked, announce=False, meter=False)

    def first(
        self,
        request: Canonical,
        candidates: Iterable[Candidate],
        asked: SetFields | None,
        record: Record,
        announces: Callable[[EngineView], bool],
        now: float,
    ) -> tuple[Candidate, bytes] | BadRequest | None:
        """Return the first candidate that the request can be put to, and its body.

        Those before it are noted as passed over; if all are, what stands in the way is returned.
        `None`: there is no candidate. `announces`: whether an engine is to announce what it hits.
        """
        why = None
        for candidate in candidates:
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
        for candidate in candidates:
            try:
                yield candidate, body_for(request, candidate, asked, False)
            except Untranslatable:
                continue
