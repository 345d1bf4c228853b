"""A certificate authority in a folder: signs coordinators and nodes, with keys on P-256.

The folder holds `ca/` (keep it apart: who has its key can be anybody), `coordinator/` and one
folder for each of `nodes/`, each with tls.crt, tls.key and the authority's ca.crt.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lineside.certificates import Certificate, described, general_name, write

AUTHORITY_DAYS = 3650

CLOCKS = timedelta(hours=1)
"""Certificates hold from this long before they are made: clocks differ."""

COORDINATOR = "coordinator"
NODES = "nodes"
DOMAIN = "lineside"


class Unfit(Exception):
    """A folder that cannot be used. Says why."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, its key, and who signed it, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)
    authority: bytes

    @property
    def certificate(self) -> Certificate:
        """What it says."""
        return described(self.chain)[0]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a certificate is for. `node`: it is an agent's; else a coordinator's, by `names`."""

    names: Sequence[str] = ()
    node: str | None = None

    @property
    def folder(self) -> Path:
        """Where its files are, below the authority's folder."""
        return Path(COORDINATOR) if self.node is None else Path(NODES, self.node)


class Authority:
    """One folder's."""

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, own: x509.Certificate):
        self._folder = folder
        self._key = key
        self._own = own

    @classmethod
    def of(cls, folder: Path, now: datetime) -> "Authority":
        """Return a folder's authority, a new one where there is none. Raises `Unfit`, `OSError`."""
        key_file, file = folder / "ca" / "ca.key", folder / "ca" / "ca.crt"
        if key_file.exists() or file.exists():
            return cls._found(folder, key_file, file)
        key = ec.generate_private_key(ec.SECP256R1())
        own = _authority(key, now)
        for made in (folder, folder / "ca"):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(key_file, _key_pem(key), 0o600)
        write(file, own.public_bytes(serialization.Encoding.PEM), 0o644)
        return cls(folder, key, own)

    @classmethod
    def _found(cls, folder: Path, key_file: Path, file: Path) -> "Authority":
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            own = x509.load_pem_x509_certificate(file.read_bytes())
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise Unfit(f"`{folder / 'ca'}` holds no authority that can be read") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != own.public_key():
            raise Unfit(f"`{key_file}` is not the key of `{file}`, or not of this command")
        return cls(folder, key, own)

    @property
    def certificate(self) -> Certificate:
        """What its own certificate says."""
        return described(self._own.public_bytes(serialization.Encoding.PEM))[0]

    def holders(self) -> Iterator[Holder]:
        """Yield who has a certificate in the folder. Raises `Unfit`."""
        if (self._folder / COORDINATOR / "tls.crt").exists():
            yield Holder(self.pair(Holder()).certificate.names)
        for each in sorted((self._folder / NODES).glob("*/tls.crt")):
            yield Holder(node=each.parent.name)

    def pair(self, holder: Holder) -> Pair:
        """Return what a holder has. Raises `Unfit`, `OSError`."""
        folder = self._folder / holder.folder
        names = ("tls.crt", "tls.key", "ca.crt")
        found = Pair(*((folder / name).read_bytes() for name in names))
        try:
            described(found.chain)
        except ValueError:
            raise Unfit(f"`{folder / 'tls.crt'}` is no certificate") from None
        return found

    def has(self, holder: Holder) -> bool:
        """Whether there is a certificate for a holder."""
        return (self._folder / holder.folder / "tls.crt").exists()

    def sign(self, holder: Holder, days: float, now: datetime) -> Pair:
        """Make a new key and a certificate, and keep both. Raises `Unfit`, `OSError`."""
        ends = now + timedelta(days=days)
        if ends > self._own.not_valid_after_utc:
            raise Unfit(
                f"the authority ends on {self._own.not_valid_after_utc:%F}, before that: ask for"
                " fewer days, or begin anew in another folder"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(holder, key, now, ends).public_bytes(serialization.Encoding.PEM)
        pair = Pair(made, _key_pem(key), self._own.public_bytes(serialization.Encoding.PEM))
        folder = self._folder / holder.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(folder / "tls.key", pair.key, 0o600)
        write(folder / "tls.crt", pair.chain, 0o644)
        write(folder / "ca.crt", pair.authority, 0o644)
        return pair

    def _signed(
        self, holder: Holder, key: ec.EllipticCurvePrivateKey, now: datetime, ends: datetime
    ) -> x509.Certificate:
        if holder.node is None:
            subject, usage = "lineside coordinator", ExtendedKeyUsageOID.SERVER_AUTH
            names = [general_name(name) for name in holder.names]
        else:
            subject, usage = holder.node[:64], ExtendedKeyUsageOID.CLIENT_AUTH
            uri = f"spiffe://{DOMAIN}/node/{holder.node}"
            names = [x509.UniformResourceIdentifier(uri)]
        own = self._own.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
        return (
            _begun(subject, self._own.subject, key, now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(signed_by, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    # A name of its own, so that messages tell one authority from another.
    name = f"lineside authority {secrets.token_hex(3)}"
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        _begun(name, issuer, key, now, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _begun(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(ends)
        .add_extension(identifier, critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)
