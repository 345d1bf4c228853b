"""The certificate of a gateways' listener that has none: signed by itself, and kept or not.

Certificates in files are `lineside.certificates`'. Nothing here listens.
"""

import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lineside.certificates import Files, Material, Unusable, described, general_name, write

VALID = timedelta(days=825)
"""Of a certificate that is signed here: as long as most clients accept."""

RENEW = timedelta(days=30)
"""A kept one that ends sooner is replaced at the next start."""


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
        .add_extension(
            x509.SubjectAlternativeName([general_name(n) for n in names]), critical=False
        )
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
        if described(found.chain)[0].ends - datetime.now(UTC) > RENEW:
            return found
    except Unusable:
        pass  # a new one takes its place
    made = self_signed(names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(key, made.key, 0o600)
        write(cert, made.chain, 0o644)
    except OSError as error:
        raise Unusable(f"`self_signed_dir`: {(error.strerror or 'no reason').lower()}") from None
    return made


def own_names(host: str) -> list[str]:
    """Return what clients on this machine, and elsewhere, may call a listener on this host."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if host and host not in ("0.0.0.0", "::"):
        names.append(host)
    return list(dict.fromkeys(names))
