"""How an agent reaches coordinators: in TLS or not, by which certificates, with which token.

Files are looked at again at each connect; one that cannot be used leaves what was read last. No
message shows a token.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from agent.config import AgentConfig
from agent.handshake import Ends, diagnosed
from lineside import certificates, logs
from lineside.certificates import Files
from lineside.schema import split_address

TOKEN_BYTES = 16 * 2**10

OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),  # a peer that vanished is noticed within 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # the waiting between two tries is ours alone
    ("grpc.enable_http_proxy", 0),
]

log = logs.get("agent.dialling")


class _Token:
    """A token that is set, or in a file that is exchanged."""

    def __init__(self, token: str, file: str | None) -> None:
        self._token = token
        self._file = Path(file) if file is not None else None
        self.problem = ""

    def read(self) -> str:
        """Return the token; empty: there is none (yet)."""
        if self._file is None:
            return self._token
        try:
            with self._file.open("rb") as file:
                self._token = file.read(TOKEN_BYTES).decode("ascii").strip()
            problem = "" if self._token else "`token_file` is empty"
        except OSError as error:
            problem = f"`token_file` cannot be read: {(error.strerror or 'no reason').lower()}"
        except UnicodeDecodeError:
            problem = "`token_file` holds no token"
        if problem and problem != self.problem:
            log.warning("no token", reason=problem)
        self.problem = problem
        return self._token


@dataclass
class Dialling:
    """One agent's. `files` `None`: plaintext."""

    token: _Token
    files: Files | None = None
    server_name: str | None = None
    ends: Ends = field(default_factory=Ends)

    @classmethod
    def plaintext(cls, token: str = "") -> "Dialling":
        """Return one without TLS."""
        return cls(_Token(token, None))

    @classmethod
    def of(cls, config: AgentConfig) -> "Dialling":
        """Return what the settings say. Raises `lineside.certificates.Unusable`."""
        token = _Token(config.token, config.token_file)
        if config.transport == "plaintext":
            return cls(token)
        said = config.tls
        names = ("tls.cert_file", "tls.key_file", "tls.ca_file")
        cert, key, ca = (
            Path(name) if name is not None else None
            for name in (said.cert_file, said.key_file, said.ca_file)
        )
        ends = Ends(said.cert_file, said.key_file, said.ca_file)
        return cls(token, Files(cert, key, ca, names), said.server_name, ends)

    def to(self, address: str, host: str | None = None) -> "Line":
        """Return the way to one coordinator; `host`: the name that it was found by."""
        return Line(self, address, self.server_name or host or split_address(address)[0])

    def troubles(self) -> Iterator[tuple[str, str]]:
        """Yield what is not as it should be: a code and a sentence."""
        if self.files is not None:
            yield from self.files.troubles(certificates.now())
        if self.token.problem:
            yield "token_missing", f"{self.token.problem}; the last one is sent, if there was one"

    def remaining(self) -> Iterator[tuple[str, float]]:
        """Yield for how many seconds each certificate still holds; below 0: it has ended."""
        if self.files is not None:
            now = certificates.now()
            for what, at in self.files.ends():
                yield what, (at - now).total_seconds()


@dataclass(frozen=True, slots=True)
class Line:
    """The way to one coordinator."""

    dialling: Dialling
    address: str
    name: str
    """What its certificate must be for."""

    async def channel(self) -> grpc.aio.Channel:
        """Return a new connection, by what is in the files now."""
        files = self.dialling.files
        if files is None:
            return grpc.aio.insecure_channel(self.address, options=OPTIONS)
        await asyncio.to_thread(files.look)  # the other streams go on meanwhile
        found = files.material
        credentials = grpc.ssl_channel_credentials(
            found.authorities, found.key or None, found.chain or None
        )
        name = ("grpc.ssl_target_name_override", self.name)
        return grpc.aio.secure_channel(self.address, credentials, options=[*OPTIONS, name])

    async def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what goes with the call."""
        token = await asyncio.to_thread(self.dialling.token.read)
        return (("authorization", f"Bearer {token}"),) if token else ()

    async def why(self) -> str:
        """Find out why there is no connection, where TLS is why; empty: it is something else."""
        files, issuer = self.dialling.files, ""
        if files is not None and files.material.chain:
            ours = certificates.described(files.material.chain)[0]
            issuer = ours.issuer
            if wrong := ours.wrong(certificates.now()):
                return f"this agent's own certificate (`tls.cert_file`) {wrong}: renew it"
        host, port = split_address(self.address)
        ends = self.dialling.ends if files is not None else None
        return await asyncio.to_thread(diagnosed, host, port, self.name, ends, issuer)
