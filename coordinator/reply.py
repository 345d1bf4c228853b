"""What a client gets instead of an answer, whatever the reason. Types only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from coordinator.error_kinds import openai_error


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client gets instead of an answer. `reason` is for records and metrics."""

    status: int
    reason: str
    type: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def openai_error(self) -> dict[str, Any]:
        """Return the error in the shape of the OpenAI API, as the engines send it."""
        return openai_error(self.status, self.message, self.type, self.param)

    def openai_body(self) -> bytes:
        """Return the error as a response's body."""
        return msgspec.json.encode(self.openai_error())


RETRY_SOON = {"retry-after": "1"}
