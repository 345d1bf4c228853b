"""What the gateways' listener proves itself by: how long it holds, and what is said of its end."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.config import Gateways
from coordinator.doors import gateway_tls
from coordinator.doors.certificates import VALID, self_signed
from coordinator.doors.gateway_tls import GatewayTls

DAY_S = 86_400.0


def written(folder: Path, left: timedelta) -> Gateways:
    """Return settings with a certificate that holds for so long."""
    made = self_signed(["127.0.0.1"], datetime.now(UTC) - VALID + left)
    (folder / "c.pem").write_bytes(made.chain)
    (folder / "k.pem").write_bytes(made.key)
    return Gateways(cert_file=str(folder / "c.pem"), key_file=str(folder / "k.pem"))


def state(tls: GatewayTls) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return how many days are left, and what is degraded without its date."""
    days = {what: round(seconds / DAY_S) for what, seconds in tls.remaining()}
    return days, [(code, text.partition(" on ")[0]) for code, text in tls.degraded()]


async def test_a_certificate_in_files_is_told_of_before_it_ends(tmp_path: Path) -> None:
    tls = GatewayTls(written(tmp_path, timedelta(days=30)))
    assert state(tls) == ({}, [])  # nobody listens
    assert tls.begun("127.0.0.1") is not None
    assert state(tls) == ({"certificate": 30}, [])
    written(tmp_path, timedelta(days=3))
    await tls.look()  # though no gateway connects
    text = "gateways' listener: the certificate ends"
    assert state(tls) == ({"certificate": 3}, [("certificate_ending", text)])
    written(tmp_path, timedelta(days=-1))
    await tls.look()
    text = "gateways' listener: the certificate ended"
    assert state(tls) == ({"certificate": -1}, [("certificate_ending", text)])


async def test_files_that_cannot_be_used_are_told_of_and_the_last_ones_count(
    tmp_path: Path,
) -> None:
    tls = GatewayTls(written(tmp_path, timedelta(days=30)))
    tls.begun("127.0.0.1")
    (tmp_path / "c.pem").write_text("what is this")
    await tls.look()
    days, ((code, text),) = state(tls)
    assert (days, code) == ({"certificate": 30}, "certificate_rejected")
    assert "`gateways.cert_file` holds no certificate in PEM" in text


def test_one_that_is_signed_here_is_told_of_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tls = GatewayTls(Gateways())
    assert tls.begun("127.0.0.1") is not None
    assert state(tls) == ({"certificate": VALID.days}, [])
    monkeypatch.setattr(gateway_tls, "SOON", VALID + timedelta(days=1))
    ((code, text),) = tls.degraded()
    assert code == "certificate_ending" and text.endswith(" UTC: restart")


def test_in_plaintext_there_is_nothing_to_end() -> None:
    tls = GatewayTls(Gateways(transport="plaintext"))
    assert tls.begun("127.0.0.1") is None
    assert state(tls) == ({}, [])
