"""What gRPC's own log says of TLS handshakes that failed, and what is made of it."""

import re
from pathlib import Path

import pytest

from coordinator.trust.handshakes import (
    ATTRIBUTED_S,
    CAUSES,
    EXPIRED,
    FOREIGN,
    MISSING,
    NAME,
    NOT_YET_VALID,
    OTHER,
    OURS,
    PLAINTEXT,
    Cause,
    Handshakes,
)
from tests.manual_clock import ManualClock

FAILED = (
    "I1130 20:25:05.982509   13667 ssl_transport_security.cc:2563] Handshake failed with error"
    " SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (FAILED + "CERTIFICATE_VERIFY_FAILED: certificate has expired", EXPIRED),
        (FAILED + "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", NOT_YET_VALID),
        (FAILED + "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", FOREIGN),
        (FAILED + "CERTIFICATE_VERIFY_FAILED: certificate signature failure", FOREIGN),
        (FAILED + "PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate verif", MISSING),
        (FAILED + "TLSV1_ALERT_UNKNOWN_CA: Invalid certificate verification context", OURS),
        (FAILED + "SSLV3_ALERT_CERTIFICATE_EXPIRED: Invalid", OURS),
        (FAILED + "BAD_PACKET_LENGTH: Invalid certificate verification context", OURS),
        (FAILED + "WRONG_VERSION_NUMBER: Invalid certificate verification context", PLAINTEXT),
        (FAILED + "HTTP_REQUEST: Invalid certificate verification context", PLAINTEXT),
        (FAILED + "NO_SHARED_CIPHER: Invalid certificate verification context", OTHER),
        (
            "E1130 20:40:34.7 2855 ssl_transport.cc:3238] No match found for server name: a",
            NAME,
        ),
    ],
)
def test_a_line_tells_why(line: str, cause: Cause) -> None:
    heard = Handshakes(ManualClock())
    heard.begun()
    assert heard.hear(line)
    assert heard.counts() == {cause: 1}
    assert heard.take_news() == [cause]
    assert heard.take_news() == []


def test_other_lines_and_other_connections_are_none_of_ours() -> None:
    clock = ManualClock()
    heard = Handshakes(clock)
    assert not heard.hear(FAILED + "CERTIFICATE_VERIFY_FAILED: certificate has expired")
    heard.begun()
    assert not heard.hear("W1130 20:22:17.395663   11884 log.cc:102] Log level INFO is not")
    clock.now += ATTRIBUTED_S + 0.1
    assert not heard.hear(FAILED + "CERTIFICATE_VERIFY_FAILED: certificate has expired")
    assert heard.counts() == {}


def test_every_cause_says_what_to_do() -> None:
    for cause in (EXPIRED, NOT_YET_VALID, FOREIGN, MISSING, OURS, NAME, PLAINTEXT, OTHER):
        assert ":" in cause.text and not cause.text.endswith(".")


def test_the_guide_has_every_cause() -> None:
    page = (Path(__file__).parent.parent / "docs" / "security.md").read_text()
    table = page.partition("handshakes_failed_total{cause}`:")[2].partition("\nOf an agent's")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [cause.name for cause in CAUSES]
