"""A certificate authority for tests: files of certificates for servers and clients on loopback."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """Signs certificates that are valid for a day, into one folder."""

    def __init__(
        self, folder: Path, name: str = "authority", hours: tuple[float, float] = (-1, 24)
    ) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key, hours).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def sign(
        self,
        name: str,
        *,
        uris: Sequence[str] = (),
        dns: Sequence[str] = ("etcd.example",),
        hours: tuple[float, float] = (-1, 24),
    ) -> Pair:
        """Make a certificate for 127.0.0.1 with this common name, or a new one in its place.

        `hours`: from when on, and until when it holds, from now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = [
            x509.IPAddress(ip_address("127.0.0.1")),
            *map(x509.DNSName, dns),
            *map(x509.UniformResourceIdentifier, uris),
        ]
        made = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, hours)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        pair = Pair(str(self._folder / f"{name}.crt"), str(self._folder / f"{name}.key"))
        Path(pair.cert).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        Path(pair.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        hours: tuple[float, float] = (-1, 24),
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(hours=hours[0]))
            .not_valid_after(now + timedelta(hours=hours[1]))
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
