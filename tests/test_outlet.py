"""How parts of a stream leave for the client: framed or bare, held back, and not after its end."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from coordinator.doors.outlet import Outlet


@dataclass
class FakeClient:
    """A request, its protocol, its transport and its writer in one."""

    written: list[bytes] = field(default_factory=list)
    writing_paused: bool = False
    left: bool = False
    drained: int = 0
    framed: bool = True

    @property
    def transport(self) -> "FakeClient":
        return self

    protocol = writer = transport

    @property
    def headers(self) -> dict[str, str]:
        return {"transfer-encoding": "chunked"} if self.framed else {}

    def is_closing(self) -> bool:
        return self.left

    def write(self, part: bytes) -> None:
        self.written.append(part)

    async def drain(self) -> None:
        self.drained += 1


def outlet(client: FakeClient) -> Outlet:
    return Outlet(cast(Any, client), cast(Any, client))


@pytest.mark.parametrize(
    ("framed", "part", "sent"),
    [
        pytest.param(True, b"data: 1\n\n", b"9\r\ndata: 1\n\n\r\n", id="a chunk of HTTP/1.1"),
        pytest.param(True, b"x" * 300, b"12c\r\n" + b"x" * 300 + b"\r\n", id="its length in hex"),
        pytest.param(False, b"data: 1\n\n", b"data: 1\n\n", id="bare for HTTP/1.0"),
    ],
)
def test_a_part_leaves_in_one_write(framed: bool, part: bytes, sent: bytes) -> None:
    client = FakeClient(framed=framed)
    assert outlet(client).send(part) is False
    assert client.written == [sent]


async def test_a_client_that_does_not_take_more_in_is_waited_for() -> None:
    client = FakeClient(writing_paused=True)
    to_client = outlet(client)
    assert to_client.send(b"x") is True
    await to_client.drain()
    assert (client.written, client.drained) == ([b"1\r\nx\r\n"], 1)


def test_nothing_is_written_to_a_client_that_has_left() -> None:
    client = FakeClient(left=True)
    with pytest.raises(ConnectionResetError):
        outlet(client).send(b"x")
    assert client.written == []


def test_there_is_no_outlet_to_a_client_that_has_left() -> None:
    class Gone(FakeClient):
        transport = cast(Any, None)

    with pytest.raises(ConnectionResetError):
        outlet(Gone())
