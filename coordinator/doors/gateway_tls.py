"""What the gateways' listener proves itself by, and for how long that holds.

A certificate in files is read again when they change; without files it is one that is signed here.
Nothing here listens.
"""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import grpc

from coordinator.config import Gateways
from coordinator.doors.certificates import kept, own_names, self_signed
from coordinator.trust.server_tls import following
from lineside import certificates, logs
from lineside.certificates import SOON, Files, Material, described

log = logs.get("coordinator.doors.gateway_tls")

NAMES = ("gateways.cert_file", "gateways.key_file", "gateways.client_ca_file")


class GatewayTls:
    """One listener's; before `begun`, and in plaintext, it has nothing. `look` keeps it new."""

    def __init__(self, config: Gateways) -> None:
        self._config = config
        self._files: Files | None = None
        self._own_ends: datetime | None = None
        """When the certificate ends that is signed here."""

    def begun(self, host: str) -> grpc.ServerCredentials | None:
        """Return what a listener on this host proves itself by; `None`: it is plaintext.

        Raises `lineside.certificates.Unusable`.
        """
        said = self._config
        if said.transport == "plaintext":
            return None
        if said.cert_file is None or said.key_file is None:
            return self._by_itself(host)
        client_ca = Path(said.client_ca_file) if said.client_ca_file else None
        self._files = Files(Path(said.cert_file), Path(said.key_file), client_ca, NAMES)
        return following(self._files)

    def _by_itself(self, host: str) -> grpc.ServerCredentials:
        said, names = self._config, own_names(host)
        folder = said.self_signed_dir
        made = self_signed(names) if folder is None else kept(Path(folder), names)
        log.info("serving with a self-signed certificate", kept=folder)
        self._own_ends = described(made.chain)[0].ends
        if said.client_ca_file is not None:
            made = Material(made.key, made.chain, Path(said.client_ca_file).read_bytes())
        wants_client = said.client_ca_file is not None
        return grpc.ssl_server_credentials([(made.key, made.chain)], made.authorities, wants_client)

    async def look(self) -> None:
        """Look at the files, so that their state is known though no gateway connects."""
        if self._files is not None:
            await asyncio.to_thread(self._files.look)

    def _ends(self) -> Sequence[tuple[str, datetime]]:
        if self._files is not None:
            return self._files.ends()
        return () if self._own_ends is None else (("certificate", self._own_ends),)

    def remaining(self) -> Iterator[tuple[str, float]]:
        """Yield for how many seconds each certificate still holds; below 0: it has ended."""
        now = certificates.now()
        for what, at in self._ends():
            yield what, (at - now).total_seconds()

    def degraded(self) -> Iterator[tuple[str, str]]:
        """Yield what is not as it should be: a code and a sentence."""
        now, ends = certificates.now(), self._own_ends
        if self._files is not None:
            for code, text in self._files.troubles(now):
                yield code, f"gateways' listener: {text}"
        elif ends is not None and ends - now < SOON:
            text = f"its self-signed certificate ends on {ends:%F at %R} UTC: restart"
            yield "certificate_ending", f"gateways' listener: {text}"
