"""What is made out of heads of requests that are none, or only a part of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.doors.malformed import HEAD_BYTES, Head, head_of


@pytest.mark.parametrize(
    ("raw", "head"),
    [
        pytest.param(
            b"POST /v1/messages?a=b HTTP/9.9\r\nX-Request-ID: r 1 \r\nbroken\r\n\r\nx: body",
            Head("/v1/messages", {"x-request-id": "r 1"}),
            id="all but its version and one line",
        ),
        pytest.param(b"POST /v1/mess", Head("/v1/mess"), id="it ends in the path"),
        pytest.param(b"POST http://h/v1/messages HTTP/1.1\r\n", Head(), id="an address"),
        pytest.param(b"\x16\x03\x01\x02\x00", Head(), id="TLS"),
        pytest.param(b"", Head(), id="nothing"),
        pytest.param(
            b"GET / HTTP/1.1\r\na: " + b"x" * HEAD_BYTES + b"\r\nb: y\r\n\r\n",
            Head("/", {"a": "x" * (HEAD_BYTES - len(b"GET / HTTP/1.1\r\na: "))}),
            id="too long",
        ),
    ],
)
def test_as_much_is_read_as_is_there(raw: bytes, head: Head) -> None:
    assert head_of(raw) == head


@given(st.binary(max_size=200))
def test_nothing_that_comes_breaks_it(raw: bytes) -> None:
    path = head_of(raw).path
    assert path == "" or path.startswith("/")
