"""What is asked of an API server, and what can come of it. The seam; `transport` has it.

An answer is a value, whatever its status; an exception says that there was none.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from lineside.decoding import decoded

Query: TypeAlias = Sequence[tuple[str, str]]
Body: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]

JSON_PATCH = "application/json-patch+json"
JSON = "application/json"

MESSAGE_CHARS = 300
"""Of what a server says of a failure; it may repeat a whole object."""


class ApiAway(Exception):
    """The API server cannot be reached, or broke off; says why."""


class Untrusted(ApiAway):
    """Its certificate is of no authority that we know, or for another name."""


class Refused(Exception):
    """The API server did not open a watch; carries its answer."""

    def __init__(self, answer: "Answer") -> None:
        super().__init__(answer.reason)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said."""

    status: int
    body: bytes
    retry_after_s: float = 0.0
    """For how long it wants to be left alone."""

    @property
    def is_good(self) -> bool:
        """Whether it did what was asked."""
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """What it says of a failure, in one line."""
        try:
            said = decoded(self.body, _Said).message
        except msgspec.MsgspecError:
            said = ""
        said = " ".join(said.split())[:MESSAGE_CHARS]
        return f"it answers {self.status}" + (f": {said}" if said else "")


class _Said(msgspec.Struct):
    message: str = ""


class Api(Protocol):
    """One API server."""

    async def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Body | None = None,
        content_type: str = JSON,
    ) -> Answer:
        """Send one request. Raises `ApiAway`."""
        ...

    def watch(self, path: str, query: Query, idle_s: float) -> AsyncGenerator[bytes, None]:
        """Yield an empty line once a watch is open, then each line of it, until the server ends it.

        Raises `ApiAway` when it breaks off, or nothing comes for `idle_s`, and `Refused`.
        """
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...
