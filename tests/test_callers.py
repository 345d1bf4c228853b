"""Who may ask where to send requests, and for whom."""

import threading
from pathlib import Path

import pytest

from coordinator.config import Gateway, Gateways
from coordinator.credentials import read_key
from coordinator.doors.callers import (
    Caller,
    Callers,
    NotYours,
    Shown,
    Stranger,
    is_local,
    tenant_of,
)
from coordinator.limits import NOBODY

EDGE = Caller("edge")
LOCAL = Shown(is_local=True)


def callers(folder: Path, **settings: object) -> Callers:
    (folder / "edge").write_text("s3cret\n")
    (folder / "inner").write_text("other")
    allowed = (
        Gateway(name="edge", token_file=str(folder / "edge")),
        Gateway(name="inner", token_file=str(folder / "inner"), credentials=True),
        Gateway(name="mesh", certificate="mesh.example"),
    )
    return Callers(Gateways(allowed=allowed, client_ca_file="ca.pem", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param(Shown("Bearer s3cret"), EDGE, id="a token"),
        pytest.param(Shown("Bearer other"), Caller("inner", wants_keys=True), id="another"),
        pytest.param(Shown(common_name="mesh.example"), Caller("mesh"), id="a certificate"),
        pytest.param(Shown("Bearer s3cret", "mesh.example"), EDGE, id="both"),
    ],
)
def test_gateways_are_known_by_what_they_show(
    shown: Shown, expected: Caller, tmp_path: Path
) -> None:
    assert callers(tmp_path).known(shown) == expected


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        pytest.param(Shown(), "send a gateway's token", id="nothing"),
        pytest.param(LOCAL, "send a gateway's token", id="nothing, from here"),
        pytest.param(Shown("Bearer x", is_local=True), "the token is not one", id="a token"),
        pytest.param(Shown("s3cret"), "the token is not one", id="no scheme"),
        pytest.param(Shown("Bearer \udcff"), "the token is not one", id="no text"),
        pytest.param(Shown(common_name="x"), "the certificate is not one", id="a certificate"),
    ],
)
def test_others_are_told_why_not(shown: Shown, why: str, tmp_path: Path) -> None:
    of = callers(tmp_path)
    found = of.known(shown)
    assert isinstance(found, Stranger) and found.text.startswith(why)
    assert of.strangers == 1


def test_where_it_is_allowed_this_machine_may_ask_and_no_other(tmp_path: Path) -> None:
    of = callers(tmp_path, anonymous=True)
    local = of.known(LOCAL)
    assert isinstance(local, Caller) and not (local.is_gateway or local.wants_keys)
    assert isinstance(of.known(Shown()), Stranger)
    wrong = "the token is not one of a gateway that may ask here"
    assert of.known(Shown("Bearer wrong", is_local=True)) == Stranger(
        f"{wrong}; callers on this machine send none"
    )
    assert of.known(Shown("Bearer wrong")) == Stranger(wrong)
    assert callers(tmp_path).known(Shown("Bearer wrong", is_local=True)) == Stranger(wrong)


def test_a_token_counts_until_another_one_can_be_read(tmp_path: Path) -> None:
    of = callers(tmp_path)
    file = tmp_path / "edge"
    file.unlink()
    of.read()
    assert of.known(Shown("Bearer s3cret")) == EDGE
    file.write_text("two\nlines")
    of.read()
    assert of.known(Shown("Bearer s3cret")) == EDGE
    file.write_text("n3w")
    of.read()
    assert of.known(Shown("Bearer n3w")) == EDGE
    assert isinstance(of.known(Shown("Bearer s3cret")), Stranger)


async def test_tokens_are_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, threads = callers(tmp_path), set[int]()

    def read(path: Path, setting: str) -> tuple[str | None, str]:
        threads.add(threading.get_ident())
        return read_key(path, setting)

    monkeypatch.setattr("coordinator.doors.callers.read_key", read)
    (tmp_path / "edge").write_text("n3w")
    await of.look()
    assert of.known(Shown("Bearer n3w")) == EDGE
    assert threads and threading.get_ident() not in threads


def test_a_gateway_whose_token_was_never_there_is_not_known(tmp_path: Path) -> None:
    allowed = (Gateway(name="edge", token_file=str(tmp_path / "none")),)
    found = Callers(Gateways(allowed=allowed)).known(Shown("Bearer "))
    assert isinstance(found, Stranger)


def test_gateways_name_tenants_and_others_nobody() -> None:
    local = Caller("this machine", is_gateway=False)
    assert tenant_of(EDGE, "blue") == "blue"
    assert tenant_of(EDGE, "") == tenant_of(local, "") == NOBODY
    assert isinstance(tenant_of(local, "blue"), NotYours)
    for odd in ("two words", "a" * 254, "\n"):
        found = tenant_of(EDGE, odd)
        assert isinstance(found, NotYours) and found.malformed


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("localhost", False),
        ("", False),
        (None, False),
    ],
)
def test_addresses_of_this_machine(address: str | None, expected: bool) -> None:
    assert is_local(address) is expected
