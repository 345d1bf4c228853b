"""How a process runs and ends: what it announces, and which exit code stands for what."""

import asyncio
import errno
import os
import signal

import pytest

from lineside.process import Announce, Run, cannot_listen, serve


def raising(error: BaseException) -> Run:
    async def run(stop: asyncio.Event, announce: Announce) -> None:
        raise error

    return run


def test_it_says_where_it_listens_and_ends_on_a_signal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def run(stop: asyncio.Event, announce: Announce) -> None:
        announce({"http": "127.0.0.1:1"})
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()

    assert serve(run) == 0
    assert capfd.readouterr() == ('{"listening": {"http": "127.0.0.1:1"}}\n', "")


BUSY = cannot_listen("127.0.0.1:1", OSError(errno.EADDRINUSE, "in use"))


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(BUSY, id="alone"),
        pytest.param(BaseExceptionGroup("of tasks", [BUSY]), id="in a group"),
        pytest.param(
            ExceptionGroup("of tasks", [ExceptionGroup("of tasks", [BUSY]), OSError("later")]),
            id="the first of several",
        ),
    ],
)
def test_what_it_cannot_have_is_one_line(
    error: BaseException, capfd: pytest.CaptureFixture[str]
) -> None:
    assert serve(raising(error)) == 3
    said = "could not run: cannot listen on `127.0.0.1:1`: another process does; name another port"
    assert capfd.readouterr() == ("", f"{said}\n")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TimeoutError(), id="without a reason"),
        pytest.param(ValueError("a fault of ours"), id="another kind"),
        pytest.param(ExceptionGroup("of tasks", [BUSY, ValueError()]), id="beside another kind"),
    ],
)
def test_a_fault_of_ours_is_raised(error: BaseException, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)) as raised:
        serve(raising(error))
    assert raised.value is error
    assert capfd.readouterr() == ("", "")


def test_an_address_that_is_no_address_of_ours_says_so() -> None:
    error = cannot_listen("192.0.2.1:1", OSError(errno.EADDRNOTAVAIL, "Cannot assign address"))
    assert str(error) == "cannot listen on `192.0.2.1:1`: cannot assign address"
