"""Certificates and keys in files that may change: read, checked against each other, described.

A file that changed and cannot be used leaves what was read last in force, and `problem` says why.
What is written is whole at once. Nothing here listens, connects or signs.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from lineside import logs
from lineside.schema import settings_of
from lineside.settings import Problem

log = logs.get("lineside.certificates")

SOON = timedelta(days=7)
"""A certificate that ends within this is a degraded state: time to renew it by hand."""

FILE_BYTES = 2**20

_NODE = re.compile(r"spiffe://[^/]+/node/([^/]+)\Z")
"""A certificate's URI that names a node."""


@dataclass(frozen=True, slots=True)
class Material:
    """What one side proves itself by, and whom it trusts, in PEM."""

    key: bytes = field(repr=False)
    chain: bytes
    """Empty, as `key` then is: it shows no certificate."""
    authorities: bytes | None = None
    """Who must have signed the other side's certificate; `None`: a listener asks for none, who
    connects trusts the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a certificate says of itself."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """DNS names and addresses that it is for."""
    uris: tuple[str, ...]
    begins: datetime
    ends: datetime
    is_authority: bool

    def wrong(self, now: datetime) -> str:
        """Return why it does not hold at a moment; empty: it does."""
        if now >= self.ends:
            return f"has expired, on {self.ends:%Y-%m-%d at %H:%M} UTC"
        if now < self.begins:
            return f"is not valid before {self.begins:%Y-%m-%d %H:%M} UTC"
        return ""


class Unusable(OSError):
    """Files hold nothing to start with. Says which setting and why."""


class Files:
    """Certificate, key, and authorities of the other side, read again when a file changes.

    `names` are the settings that name the three files.
    """

    def __init__(
        self,
        cert: Path | None,
        key: Path | None,
        authorities: Path | None,
        names: Sequence[str] = ("cert_file", "key_file", "client_ca_file"),
    ) -> None:
        """Read them. Raises `Unusable`."""
        self._files = tuple(zip(names, (cert, key, authorities), strict=True))
        self._seen = self._marks()
        self.material = self._read()
        self._ends = tuple(_ends(self.material))
        self.problem = ""
        """Why what is in the files now is not used; empty: it is."""

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
            self.problem = str(error)
            log.warning("certificate not changed", reason=str(error))
            return None
        self.problem, self._ends = "", tuple(_ends(self.material))
        log.info("certificate changed", ends={what: f"{at:%F %R}" for what, at in self.ends()})
        return self.material

    def ends(self) -> Sequence[tuple[str, datetime]]:
        """Return when what is in force ends: our `certificate`, and the last of `authorities`."""
        return self._ends

    def troubles(self, now: datetime) -> Iterator[tuple[str, str]]:
        """Yield what is wrong: `certificate_rejected` or `certificate_ending`, and a sentence."""
        if self.problem:
            text = f"files of certificates changed and cannot be used: {self.problem}"
            yield "certificate_rejected", f"{text}; the last good ones stay in force"
        for what, at in self.ends():
            said = _SAID[what]
            if at <= now:
                yield "certificate_ending", f"{said} ended on {at:%F at %R} UTC: renew it"
            elif at - now < SOON:
                yield "certificate_ending", f"{said} ends on {at:%F at %R} UTC: renew it"

    def _marks(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_mark(path) for _, path in self._files)

    def _read(self) -> Material:
        chain, key, authorities = (_content(path, name) for name, path in self._files)
        names = [name for name, _ in self._files]
        if chain is not None and key is not None:
            _check(chain, key, names)
        if authorities is not None:
            _authorities(authorities, names[2])
        return Material(key or b"", chain or b"", authorities)


_ODD = (
    InvalidSignature,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What reading a certificate raises beside `ValueError`, most of it only where it is looked at."""

_SAID = {
    "certificate": "the certificate",
    "authorities": "the last of the certificates that sign the other side's",
}


def described(pem: bytes) -> list[Certificate]:
    """Return what the certificates of a file say, in their order. Raises `ValueError`."""
    try:
        return [_described(each) for each in x509.load_pem_x509_certificates(pem)]
    except _ODD as error:
        raise ValueError("a certificate says what cannot be read") from error


def unusable(settings: msgspec.Struct) -> Iterator[Problem]:
    """Yield which files of certificates that settings name cannot be used, and why.

    Of settings with these names alone, whatever they are part of; not of their defaults.
    """
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for each in settings_of(type(settings)):
        value: Any = settings
        for step in each.path:
            value = getattr(value, step)
        if each.path[-1] in _NAMES and isinstance(value, str) and value != each.default:
            groups.setdefault(each.path[:-1], {})[each.path[-1]] = value
    for path, files in groups.items():
        read: dict[str, bytes] = {}
        for name, file in files.items():
            dotted = ".".join((*path, name))
            try:
                read[name] = _content(Path(file), dotted) or b""
                if name in _AUTHORITIES:
                    _authorities(read[name], dotted)
            except Unusable as error:
                yield Problem(((*path, name),), "unusable-file", str(error), _CHECKED_HERE)
        if "cert_file" in read and "key_file" in read:
            names = [".".join((*path, name)) for name in ("cert_file", "key_file")]
            try:
                _check(read["cert_file"], read["key_file"], names)
            except Unusable as error:
                yield Problem(((*path, "cert_file"),), "unusable-file", str(error), _CHECKED_HERE)


_AUTHORITIES = ("ca_file", "client_ca_file")

_NAMES = ("cert_file", "key_file", *_AUTHORITIES)

_CHECKED_HERE = (
    "check where the process runs, as its user; `lineside certs show FILE` describes one"
)


def nodes_of(uris: Sequence[str], names: Sequence[str]) -> set[str]:
    """Return the nodes that a certificate speaks for: by its URIs, or else by its DNS names."""
    of_uris = {found[1] for uri in uris if (found := _NODE.match(uri))}
    return of_uris or set(names)


def now() -> datetime:
    """Return the time that certificates go by."""
    return datetime.now(UTC)


def common_name(name: x509.Name) -> str:
    """Return what people call the holder of a name."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string() or "nobody"


def _described(found: x509.Certificate) -> Certificate:
    names: list[str] = []
    uris: list[str] = []
    is_authority = False
    with suppress(x509.ExtensionNotFound):
        said = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += said.get_values_for_type(x509.DNSName)
        names += [str(each) for each in said.get_values_for_type(x509.IPAddress)]
        uris += said.get_values_for_type(x509.UniformResourceIdentifier)
    with suppress(x509.ExtensionNotFound):
        is_authority = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    return Certificate(
        subject=common_name(found.subject),
        issuer=common_name(found.issuer),
        names=tuple(names),
        uris=tuple(uris),
        begins=found.not_valid_before_utc,
        ends=found.not_valid_after_utc,
        is_authority=is_authority,
    )


def _mark(path: Path | None) -> tuple[int, int, int] | None:
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None


def _content(path: Path | None, setting: str) -> bytes | None:
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


def _check(chain: bytes, key: bytes, names: Sequence[str]) -> None:
    """Raise `Unusable` unless key and certificate belong together."""
    try:
        described(chain)
        first = x509.load_pem_x509_certificates(chain)[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise Unusable(f"`{names[0]}` holds no certificate in PEM") from None
    try:
        loaded = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Unusable(f"`{names[1]}` holds no private key in PEM without a password") from None
    if loaded.public_key() != first:
        raise Unusable(f"`{names[1]}` is not the key of the certificate in `{names[0]}`")


def _ends(material: Material) -> Iterator[tuple[str, datetime]]:
    # Worked out once: readiness asks at every probe, and a file may hold hundreds of authorities.
    if material.chain:
        yield "certificate", described(material.chain)[0].ends
    if material.authorities:
        yield "authorities", max(each.ends for each in described(material.authorities))


def _authorities(pem: bytes, setting: str) -> None:
    try:
        described(pem)
    except ValueError:
        raise Unusable(f"`{setting}` holds no certificate in PEM") from None


def general_name(name: str) -> x509.GeneralName:
    """Return a name or an address as certificates have it."""
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode() if not name.isascii() else name)


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a file at once, readable by those that `mode` says from its first moment on."""
    beside = path.with_suffix(path.suffix + ".new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    beside.replace(path)
