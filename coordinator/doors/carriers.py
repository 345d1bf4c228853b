"""A backend's answer in its client's API: as it came, or translated. Pure."""

from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator import error_shapes
from coordinator.answer_parts import read_answer
from coordinator.apis import Api
from coordinator.doors.sse import Carried, stream_of
from coordinator.limits import Usage
from coordinator.translate import answers
from lineside.decoding import decoded


@dataclass(frozen=True, slots=True)
class Carriage:
    """From whom to whom, and what a translated answer is to be called."""

    client: Api
    backend: Api
    model: str
    """As the client knows it."""
    id: str
    created: int
    """In Unix seconds."""
    is_foreign: bool = False
    """The backend is a provider: what it says of an account of ours is not for clients."""

    @property
    def is_native(self) -> bool:
        """Whether nothing is translated."""
        return self.client is self.backend

    def stream(self, usage_asked: bool) -> Carried:
        """Return what carries a stream."""
        if self.is_native:
            return stream_of(self.client, usage_asked, self._reworded if self.is_foreign else None)
        return answers.Stream(
            self.client, self.backend, self.model, usage_asked, self.id, self.created
        )

    def answer(self, body: bytes) -> tuple[bytes, Usage, str | None] | None:
        """Return a whole answer, its usage and why it ended; `None`: nobody can read it."""
        if self.is_native:
            if self.is_foreign and not _is_answer(body, self.client):
                return None
            return body, *read_answer(body, self.client)
        try:
            return answers.whole(self.client, self.backend, body, self.model, self.id, self.created)
        except answers.Unreadable:
            return None

    def failure(self, status: int, body: bytes, request_id: str) -> bytes:
        """Return the body of an error."""
        if self.is_native and (not self.is_foreign or answers.is_for_clients(status, body)):
            return error_shapes.in_shape(self.client, status, body, request_id)
        return answers.error(self.client, self.backend, status, body)

    def _reworded(self, data: bytes) -> bytes:
        """Return an error event of a provider's in words that are for clients."""
        said = error_shapes.read_event(self.client, data)
        return answers.error_event(self.client, said.status, said.body, data)


class _Said(msgspec.Struct):
    error: Any = None


def _is_answer(body: bytes, api: Api) -> bool:
    """Whether what came with status 200 is one: not a page, nothing, or an error after all."""
    try:
        said = decoded(body, _Said)
    except msgspec.MsgspecError:
        return False
    return said.error is None or api is Api.OPENAI_RESPONSES  # where an answer can have failed
