"""What the doctor says of what processes may do, and of certificates in Secrets."""

import base64
from datetime import datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.kube.needs import of_coordinators
from tests.kube_scenes import (
    CORE,
    examined,
    healthy,
    pod,
    pods,
    soon,
)


def asking() -> dict[str, Any]:
    """A cluster whose coordinators read their resources from the API server."""
    answers = healthy()
    change = {"automountServiceAccountToken": True}
    pods(pod("lineside-coordinator-0", "coordinator", **change))(answers)
    first = answers[f"{CORE}/pods"]["items"][0]
    assert first["spec"]["automountServiceAccountToken"] is True
    return answers


NEEDED = {f"lineside-coordinator {need}" for need in of_coordinators()}


async def test_rights_that_are_there_are_no_finding() -> None:
    assert await examined(asking(), NEEDED) == []


@pytest.mark.parametrize("need", sorted(of_coordinators()), ids=str)
async def test_a_right_that_lacks_is_named_with_what_does_not_work(need: Any) -> None:
    found = await examined(asking(), NEEDED - {f"lineside-coordinator {need}"})
    text = f"lineside-coordinator may not {need}: {need.why}"
    assert found == [("rights", "problem", text, "the chart's role grants it: helm upgrade")]


async def test_a_right_that_nobody_needs_is_named() -> None:
    assert await examined(healthy(), {"lineside-agent list secrets"}) == [
        (
            "rights",
            "warning",
            "lineside-agent may list secrets: whoever takes the process over reads every key",
            "take that role binding away",
        )
    ]


async def test_without_the_right_to_review_nothing_is_said_of_rights() -> None:
    found = await examined(asking(), set(), reviews=403)
    assert found == [
        (
            "cluster",
            "warning",
            "could not look at what our processes may do: not allowed",
            "allow `create subjectaccessreviews`",
        )
    ]


def certificate(ends: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(soon(-400))
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("ends", "level", "words"),
    [
        pytest.param(soon(90), "", "", id="far off"),
        pytest.param(soon(5), "warning", "tls/tls.crt ends at 2026-12-05 12:00 UTC", id="soon"),
        pytest.param(soon(-1), "problem", "tls/tls.crt ended at 2026-11-29 12:00 UTC", id="over"),
        pytest.param(None, "problem", "tls/tls.crt holds no certificate", id="no certificate"),
    ],
)
async def test_certificates_are_read_and_keys_are_not(
    ends: datetime | None, level: str, words: str
) -> None:
    answers = healthy()
    volume = {"name": "tls", "secret": {"secretName": "tls"}}
    pods(pod("lineside-coordinator-0", "coordinator", volumes=[volume]))(answers)
    text = certificate(ends) if ends else b"nothing"
    data = {"tls.crt": base64.b64encode(text).decode(), "tls.key": "bm90IHNob3du"}
    answers[f"{CORE}/secrets/tls"] = {"data": data}
    found = await examined(answers)
    if not level:
        assert found == []
    else:
        ((part, said, message, help),) = found
        assert (part, said) == ("certificates", level) and words in message
        assert "not shown" not in message + help
