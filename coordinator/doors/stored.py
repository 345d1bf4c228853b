"""Which backend holds which response: what `previous_response_id` and `/v1/responses/{id}` go by.

Pure. Written by the relay when an answer names its id, and by whoever finds one by asking. Bounded:
the response that was used longest ago is forgotten first, and looked for anew when it is asked for.
"""

from collections import OrderedDict
from dataclasses import dataclass

from coordinator.fields import MAX_ID_CHARS
from lineside.ids import TenantId

KEPT = 100_000
"""Responses whose holders are remembered, at about 300 bytes each."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a response, and of which model it is."""

    endpoint: str
    """`HOST:PORT`: all ranks behind one address share what is stored."""
    model: str
    """By the name that the client used."""
    tenant: TenantId
    """Whose it is; nobody else finds it."""
    is_engine: bool = True


class Holders:
    """The responses of this process's time."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._holders: OrderedDict[str, Holder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def note(self, response: str, holder: Holder) -> None:
        """Remember who made a response."""
        if not 0 < len(response) <= MAX_ID_CHARS:
            return
        self._holders[response] = holder
        self._holders.move_to_end(response)
        if len(self._holders) > self._kept:
            self._holders.popitem(last=False)

    def find(self, response: str, tenant: TenantId) -> Holder | None:
        """Return who has a tenant's response; `None`: not known."""
        holder = self._holders.get(response)
        if holder is None or holder.tenant != tenant:
            return None
        self._holders.move_to_end(response)
        return holder

    def knows(self, response: str) -> bool:
        """Whether it is somebody's. One that is another's is not looked for elsewhere."""
        return response in self._holders

    def forget(self, response: str) -> None:
        """Drop a response that is no more."""
        self._holders.pop(response, None)
