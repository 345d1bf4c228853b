"""The certificate of the gateways' listener: from files that may change, or signed by itself.

A file that changed and cannot be used leaves what was read last in force. Nothing here listens.
"""

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lineside import logs

log = logs.get("coordinator.doors.certificates")

VALID = timedelta(days=825)
"""Of a certificate that is signed here: as long as most clients accept."""

RENEW = timedelta(days=30)
"""A kept one that ends sooner is replaced at the next start."""

FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Material:
    """What a listener proves itself by, in PEM."""

    key: bytes = field(repr=False)
    chain: bytes
    client_cas: bytes | None = None
    """Who must have signed callers' certificates; `None`: they need none."""


class Unusable(OSError):
    """There is no certificate to start with. Says which setting and why."""


class Files:
    """Certificate, key, and authorities of clients, read again when a file changes."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        """Read them. Raises `Unusable`."""
        self._files = (("cert_file", cert), ("key_file", key), ("client_ca_file", client_ca))
        self._seen = self._marks()
        self.material = self._read()

    def look(self) -> Material | None:
        """Return what is in the files if that is new and can be used. May be asked on any thread.

        A pair is written one file after the other: until both fit, nothing changes.
        """
        if (marks := self._marks()) == self._seen:
            return None
        self._seen = marks
        try:
            self.material = self._read()
        except Unusable as error:
            log.warning("certificate not changed", reason=str(error))
            return None
        log.info("certificate changed", ends=_end(self.material).isoformat())
        return self.material

    def _marks(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_mark(path) for _, path in self._files)

    def _read(self) -> Material:
        chain, key, cas = (_read(path, name) for name, path in self._files)
        assert chain is not None and key is not None
        _check(chain, key, cas)
        return Material(key, chain, cas)


def self_signed(names: Iterable[str], now: datetime | None = None) -> Material:
    """Return a new key and a certificate for these names and addresses."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lineside coordinator")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Material(key.private_bytes(pem, form, plain), certificate.public_bytes(pem))


def kept(folder: Path, names: Iterable[str]) -> Material:
    """Return the self-signed certificate that a directory keeps, or a new one, kept there."""
    cert, key = folder / "tls.crt", folder / "tls.key"
    try:
        found = Files(cert, key, None).material
        if _end(found) - datetime.now(UTC) > RENEW:
            return found
    except Unusable:
        pass  # a new one takes its place
    made = self_signed(names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(key, made.key, 0o600)
        _write(cert, made.chain, 0o644)
    except OSError as error:
        raise Unusable(f"`self_signed_dir`: {(error.strerror or 'no reason').lower()}") from None
    return made


def own_names(host: str) -> list[str]:
    """Return what clients on this machine, and elsewhere, may call a listener on this host."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if host and host not in ("0.0.0.0", "::"):
        names.append(host)
    return list(dict.fromkeys(names))


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode() if not name.isascii() else name)


def _mark(path: Path | None) -> tuple[int, int, int] | None:
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None


def _read(path: Path | None, setting: str) -> bytes | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except OSError as error:
        why = (error.strerror or "no reason given").lower()
        raise Unusable(f"`{setting}` cannot be read: {why}") from None
    if len(raw) > FILE_BYTES:
        raise Unusable(f"`{setting}` is too long for PEM")
    return raw


def _check(chain: bytes, key: bytes, cas: bytes | None) -> None:
    """Raise `Unusable` unless key and certificate belong together, and the authorities are some."""
    try:
        first = x509.load_pem_x509_certificates(chain)[0]
    except ValueError:
        raise Unusable("`cert_file` holds no certificate in PEM") from None
    try:
        loaded = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unusable("`key_file` holds no private key in PEM without a password") from None
    if loaded.public_key() != first.public_key():
        raise Unusable("`key_file` is not the key of the certificate in `cert_file`")
    if cas is not None:
        try:
            x509.load_pem_x509_certificates(cas)
        except (ValueError, InvalidSignature):
            raise Unusable("`client_ca_file` holds no certificate in PEM") from None


def _end(material: Material) -> datetime:
    return x509.load_pem_x509_certificate(material.chain).not_valid_after_utc


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file at once, readable by those that `mode` says from its first moment on."""
    beside = path.with_suffix(path.suffix + ".new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    beside.replace(path)
