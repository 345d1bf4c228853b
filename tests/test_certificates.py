"""The listener's certificate: signed by itself, kept, or in files that change."""

import base64
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.doors import certificates
from coordinator.doors.certificates import kept, own_names, self_signed
from lineside.certificates import Files, Material, Unusable

NAMES = ["localhost", "127.0.0.1", "::1"]


def write(folder: Path, made: Material) -> tuple[Path, Path]:
    cert, key = folder / "c.pem", folder / "k.pem"
    cert.write_bytes(made.chain)
    key.write_bytes(made.key)
    return cert, key


def test_a_certificate_that_signs_itself_is_for_its_names() -> None:
    made = x509.load_pem_x509_certificate(self_signed(NAMES).chain)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ip_address("127.0.0.1"),
        ip_address("::1"),
    ]
    left = made.not_valid_after_utc - datetime.now(UTC)
    assert 800 < left.days <= 825


def test_own_names_hold_the_address_that_is_listened_on() -> None:
    assert own_names("10.1.2.3")[-1] == "10.1.2.3"
    assert "0.0.0.0" not in own_names("0.0.0.0")
    assert own_names("127.0.0.1").count("127.0.0.1") == 1


def test_a_kept_certificate_is_the_same_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "tls"
    first = kept(folder, NAMES)
    assert kept(folder, NAMES) == first
    assert (folder / "tls.key").stat().st_mode & 0o077 == 0
    assert (folder / "tls.crt").read_bytes() == first.chain


def test_a_kept_certificate_that_ends_soon_or_is_broken_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept(tmp_path, NAMES)
    (tmp_path / "tls.key").write_bytes(self_signed(NAMES).key)
    second = kept(tmp_path, NAMES)
    assert second != first
    monkeypatch.setattr(certificates, "RENEW", certificates.VALID)
    assert kept(tmp_path, NAMES) != second


def test_a_folder_that_cannot_be_written_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable, match="`self_signed_dir`: "):
        kept(tmp_path / "file", NAMES)


def test_files_are_read_again_when_they_change_and_fit(tmp_path: Path) -> None:
    cert, key = write(tmp_path, self_signed(NAMES))
    files = Files(cert, key, None)
    assert files.look() is None
    other = self_signed(NAMES)
    cert.write_bytes(other.chain)
    assert files.look() is None  # its key is still the old one
    key.write_bytes(other.key)
    assert files.look() == other
    assert files.look() is None
    cert.unlink()
    assert files.look() is None
    assert files.material == other


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        pytest.param("c.pem", b"", "`cert_file` holds no certificate in PEM", id="a certificate"),
        pytest.param("k.pem", b"x", "`key_file` holds no private key in PEM", id="a key"),
        pytest.param("k.pem", None, "`key_file` cannot be read: no such file", id="no file"),
        pytest.param("ca.pem", b"x", "`client_ca_file` holds no certificate", id="authorities"),
        pytest.param("c.pem", b"x" * (2**20 + 1), "`cert_file` is too long", id="a long file"),
        pytest.param(
            "k.pem", self_signed(NAMES).key, "`key_file` is not the key of", id="another key"
        ),
    ],
)
def test_what_cannot_be_used_is_said_plainly(
    name: str, content: bytes | None, why: str, tmp_path: Path
) -> None:
    made = self_signed(NAMES)
    cert, key = write(tmp_path, made)
    authority = tmp_path / "ca.pem"
    authority.write_bytes(made.chain)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Unusable, match=why):
        Files(cert, key, authority)


def test_nothing_shows_the_key() -> None:
    assert "PRIVATE" not in repr(self_signed(NAMES))


def der_changed(pem: bytes, old: bytes, new: bytes) -> bytes:
    """Return a certificate with other bytes in it; nobody has signed that."""
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    assert old in der and len(old) == len(new)
    text = base64.encodebytes(der.replace(old, new, 1)).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n".encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x7c", id="version"),
        pytest.param(
            b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x09", id="curve"
        ),
        pytest.param(b"\x82\x09localhost", b"\x8f\x09localhost", id="kind of name"),
        pytest.param(b"\x82\x09localhost", b"\x82\x09local\xffost", id="letter"),
    ],
)
def test_a_certificate_that_says_odd_things_is_no_certificate(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    """Reading most of it is left off until somebody looks: in the middle of a handshake, say."""
    good = self_signed(NAMES)
    cert, key = write(tmp_path, good)
    files = Files(cert, key, None)
    cert.write_bytes(der_changed(good.chain, old, new))
    with pytest.raises(Unusable):
        Files(cert, key, None)
    assert files.look() is None and files.material == good
    assert [code for code, _ in files.troubles(datetime.now(UTC))] == ["certificate_rejected"]


def test_an_authority_that_says_odd_things_is_none(tmp_path: Path) -> None:
    good = self_signed(NAMES)
    cert, key = write(tmp_path, good)
    ca = tmp_path / "ca.pem"
    odd = der_changed(good.chain, b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x7c")
    ca.write_bytes(good.chain + odd)
    with pytest.raises(Unusable, match="`client_ca_file` holds no certificate in PEM"):
        Files(cert, key, ca)
