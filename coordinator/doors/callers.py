"""Who may ask where to send requests: gateways that are known, and this machine where it may.

A gateway is known by a token or by its certificate. Only a known one may say whose a request is.
Tokens come from files that are read again and again; no message and no log shows one.
"""

import asyncio
import hmac
import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

from coordinator.config import Gateway, Gateways
from coordinator.credentials import read_key
from coordinator.limits import NOBODY
from lineside import logs
from lineside.ids import TenantId

log = logs.get("coordinator.doors.callers")

_TENANT = re.compile(r"[\x21-\x7e]{1,253}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may ask."""

    name: str
    is_gateway: bool = True
    """Whether it may say whose a request is."""
    wants_keys: bool = False


class Shown(msgspec.Struct, frozen=True):
    """What a caller shows of itself."""

    authorization: str = ""
    """The header or the metadata of this name."""
    common_name: str | None = None
    """Of a certificate that was verified."""
    is_local: bool = False
    """It calls from this machine."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody who may not ask, and why, for its operator."""

    text: str


@dataclass(frozen=True, slots=True)
class NotYours:
    """A tenant that the caller may not name, or that is no tenant's name."""

    text: str
    malformed: bool = False


LOCAL = Caller("this machine", is_gateway=False)


class Callers:
    """Those who are known. `look` must be called once in a while."""

    def __init__(self, config: Gateways) -> None:
        self.see_certificates = config.client_ca_file is not None
        """Whether callers show any: to look for one takes as long as all the rest."""
        self._anonymous = config.anonymous
        self._by_name = {g.certificate: _caller(g) for g in config.allowed if g.certificate}
        self._files = {_caller(g): Path(g.token_file) for g in config.allowed if g.token_file}
        self._tokens: dict[Caller, bytes] = {}
        self._problems: dict[Caller, str] = {}
        self.strangers = 0
        """Calls of those who may not ask."""
        self.read()

    async def look(self) -> None:
        """Read all tokens anew, on a thread: a file may lie on a disk that is far away."""
        if self._files:
            await asyncio.to_thread(self.read)

    def read(self) -> None:
        """Read all tokens anew. One that cannot be read any more stays what it was."""
        tokens = dict(self._tokens)
        for caller, path in self._files.items():
            token, problem = read_key(path, "token_file")
            if token is not None:
                said = b"Bearer " + token.encode()
                if tokens.get(caller, said) != said:
                    log.info("gateway token changed", gateway=caller.name)
                tokens[caller] = said
            elif self._problems.get(caller) != problem:
                log.warning("gateway token missing", gateway=caller.name, reason=problem)
            self._problems[caller] = problem
        self._tokens = tokens  # at once: calls are looked up in it meanwhile

    def known(self, shown: Shown) -> Caller | Stranger:
        """Return who it is that shows this."""
        found = self._known(shown)
        self.strangers += isinstance(found, Stranger)
        return found

    def _known(self, shown: Shown) -> Caller | Stranger:
        given = shown.authorization.encode(errors="surrogateescape")
        found = None
        for caller, token in self._tokens.items():
            if hmac.compare_digest(given, token):
                found = caller
        if found is None and shown.common_name is not None:
            found = self._by_name.get(shown.common_name)
        if found is not None:
            return found
        if given:
            text = "the token is not one of a gateway that may ask here"
            is_free = self._anonymous and shown.is_local
            return Stranger(f"{text}; callers on this machine send none" if is_free else text)
        if shown.common_name is not None:
            return Stranger("the certificate is not one of a gateway that may ask here")
        if not self._anonymous:
            return Stranger("send a gateway's token: `authorization: Bearer TOKEN`")
        if not shown.is_local:
            return Stranger("without a token only callers on the coordinator's machine may ask")
        return LOCAL


def tenant_of(caller: Caller, said: str) -> TenantId | NotYours:
    """Return whose a request is, by its caller's word; empty: it says nothing."""
    if not said:
        return NOBODY
    if not caller.is_gateway:
        return NotYours("only a gateway that is known by a token or certificate may name a tenant")
    if not _TENANT.fullmatch(said):
        return NotYours("a tenant's name has 1 to 253 printable characters without spaces", True)
    return TenantId(said)


def is_local(address: str | None) -> bool:
    """Whether an IP address, in brackets or not, is this machine's own."""
    try:
        found = ip_address((address or "").strip("[]"))
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def _caller(gateway: Gateway) -> Caller:
    return Caller(gateway.name, wants_keys=gateway.credentials)
