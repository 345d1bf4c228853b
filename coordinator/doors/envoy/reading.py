"""How answers that pass by are read: in their backend's API, for a client of any. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from coordinator import error_shapes
from coordinator.apis import Api
from coordinator.doors.carriers import Carriage
from coordinator.doors.sse import Carried as Stream
from coordinator.doors.sse import read_answer, stream_of
from coordinator.limits import Usage

Headers: TypeAlias = Sequence[tuple[str, str]]


class Reading(Protocol):
    """Reads one answer."""

    @property
    def is_foreign(self) -> bool:
        """The client speaks another API: what goes on is not what comes."""
        ...

    def shown(self, status: int) -> Headers:
        """Return the headers that clients see instead of a backend's or beside them."""
        ...

    def stream(self) -> Stream:
        """Return what carries a stream."""
        ...

    def whole(self, status: int, body: bytes) -> tuple[bytes, Usage, str | None]:
        """Return what goes on of an answer that is whole, its usage, and why it ended."""
        ...


@dataclass(frozen=True, slots=True)
class Native:
    """An answer in the client's own API."""

    api: Api = Api.OPENAI_CHAT
    usage_asked: bool = True
    is_foreign: bool = False

    def shown(self, status: int) -> Headers:
        return ()

    def stream(self) -> Stream:
        return stream_of(self.api, self.usage_asked)

    def whole(self, status: int, body: bytes) -> tuple[bytes, Usage, str | None]:
        return body, *(read_answer(body, self.api) if status == 200 else (Usage(), None))


class Unreadable(Exception):
    """A provider's answer that nobody can make out."""


@dataclass(frozen=True, slots=True)
class Carried:
    """An answer on its way from one API to another, or the same."""

    carriage: Carriage
    usage_asked: bool
    request_id: str

    @property
    def is_foreign(self) -> bool:
        return not self.carriage.is_native

    def shown(self, status: int) -> Headers:
        client = self.carriage.client
        named = tuple(error_shapes.headers(client, self.request_id).items())
        told = error_shapes.client_status(client, status)
        return named if told == status else ((":status", str(told)), *named)

    def stream(self) -> Stream:
        return self.carriage.stream(self.usage_asked)

    def whole(self, status: int, body: bytes) -> tuple[bytes, Usage, str | None]:
        """Raises `Unreadable`."""
        if status != 200:
            return self.carriage.failure(status, body, self.request_id), Usage(), None
        read = self.carriage.answer(body)
        if read is None:
            raise Unreadable
        return read
