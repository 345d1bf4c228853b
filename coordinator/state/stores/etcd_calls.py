"""Calls to etcd over gRPC: endpoints with fail-over, TLS, tokens, time limits. Knows no keys.

One endpoint is used at a time; who fails on it moves all calls to the next one. Files of
certificates and of the password are read again after a failure, so they may be exchanged.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import grpc
import grpc.aio

from coordinator.state.store import StoreUnavailable
from lineside.clock import Clock
from lineside.v1 import etcd_pb2 as pb

TRY_S = 2.0
"""For one answer of one endpoint; a member that has lost the others never gives one."""

LIMIT_S = 6.0
"""For one call with all its tries: members take up to 2 s to choose a new leader."""

CONNECT_S = 5.0
"""For a connection, its handshake included: it goes on from try to try of one call."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

MOST_RETIRED = 8
"""Connections by former certificates."""

OPTIONS = [
    ("grpc.max_receive_message_length", 16 * 2**20),
    ("grpc.keepalive_time_ms", 10_000),  # a member that vanished is noticed within 13 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_S)),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # two clients in a process share no connection
]

Metadata: TypeAlias = tuple[tuple[str, str], ...]

_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)
"""What the next try may not meet with."""

_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...


Q = TypeVar("Q", bound=_Message)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One of etcd's methods that takes one message and gives one."""

    path: str
    answer: type[A]


RANGE: Method[pb.RangeRequest, pb.RangeResponse] = Method(
    "/etcdserverpb.KV/Range", pb.RangeResponse
)
TXN: Method[pb.TxnRequest, pb.TxnResponse] = Method("/etcdserverpb.KV/Txn", pb.TxnResponse)
GRANT: Method[pb.LeaseGrantRequest, pb.LeaseGrantResponse] = Method(
    "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse
)
REVOKE: Method[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse] = Method(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse
)
STATUS: Method[pb.StatusRequest, pb.StatusResponse] = Method(
    "/etcdserverpb.Maintenance/Status", pb.StatusResponse
)
AUTHENTICATE: Method[pb.AuthenticateRequest, pb.AuthenticateResponse] = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse
)
KEEP_ALIVE, WATCH = "/etcdserverpb.Lease/LeaseKeepAlive", "/etcdserverpb.Watch/Watch"


class Refused(Exception):
    """etcd answered that it will not; another try would get the same answer."""

    def __init__(self, code: grpc.StatusCode, said: str) -> None:
        super().__init__(f"etcd refuses: {said or code.name.lower()}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach etcd, and as whom."""

    endpoints: Sequence[str]
    """http://HOST:PORT or https://HOST:PORT, all members of one etcd."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    user: str | None = None
    password_file: str | None = None

    def files(self) -> list[Path]:
        """Return the files that make up a connection."""
        return [Path(name) for name in (self.ca_file, self.cert_file, self.key_file) if name]


class Calls:
    """One process's calls to one etcd."""

    def __init__(self, access: Access, clock: Clock, rng: random.Random) -> None:
        self.clock, self.rng = clock, rng
        self._access = access
        self._channels: dict[str, grpc.aio.Channel] = {}
        # Those whose certificates changed: what runs on them may end. Full: the oldest is closed.
        self._retired: deque[grpc.aio.Channel] = deque()
        self.at = 0
        """Place of the endpoint in use."""
        self._token: str | None = None
        self._stamps: Sequence[tuple[int, int]] = ()
        # Both await while they make what the others are to use: a channel, a token.
        self._connecting, self._authenticating = asyncio.Lock(), asyncio.Lock()

    async def call(self, method: Method[Q, A], request: Q) -> A:
        """Return the answer, of whichever endpoint gives one.

        Raises `StoreUnavailable`, and `Refused`. A call may have been carried out in either case,
        and more than once in any.
        """
        tries = Tries(self)
        while True:
            async with tries.one():
                return await self.ask(method, request)

    async def ask(self, method: Method[Q, A], request: Q) -> A:
        """Return the answer of the endpoint in use. Raises what `Tries` take, too."""
        channel, metadata = await self.connected()
        return await self._asked(channel, method, request, metadata)

    async def _asked(
        self, channel: grpc.aio.Channel, method: Method[Q, A], request: Q, metadata: Metadata
    ) -> A:
        unary: Any = channel.unary_unary(
            method.path,
            request_serializer=_serialized,
            response_deserializer=method.answer.FromString,  # type: ignore[attr-defined]
        )
        answer: A = await unary(request, timeout=TRY_S, metadata=metadata)
        return answer

    async def keep_alive(self, lease: int) -> int:
        """Return what a lease has left after it began anew, in seconds; 0: there is none."""
        tries = Tries(self)
        while True:
            async with tries.one():
                channel, metadata = await self.connected()
                stream: Any = channel.stream_stream(
                    KEEP_ALIVE,
                    request_serializer=_serialized,
                    response_deserializer=pb.LeaseKeepAliveResponse.FromString,
                )(timeout=TRY_S, metadata=metadata)
                try:
                    await stream.write(pb.LeaseKeepAliveRequest(ID=lease))
                    answer = await stream.read()
                finally:
                    stream.cancel()
                if answer is not grpc.aio.EOF:
                    return int(answer.TTL)
                raise Ended

    async def watching(self) -> Any:
        """Open a stream of watches on the endpoint in use. Raises what `failed` takes."""
        channel, metadata = await self.connected()
        # Without that word a member that has lost the others would go on in silence.
        return channel.stream_stream(
            WATCH,
            request_serializer=_serialized,
            response_deserializer=pb.WatchResponse.FromString,
        )(metadata=(*metadata, ("hasleader", "true")))

    async def connected(self) -> tuple[grpc.aio.Channel, Metadata]:
        """Return a channel to the endpoint in use, and what its calls say of us."""
        endpoint = self._access.endpoints[self.at]
        channel = await self._channel(endpoint)
        if self._access.user is None:
            return channel, ()
        async with self._authenticating:
            if self._token is None:
                self._token = await self._authenticated(channel, self._access.user)
            return channel, (("token", self._token),)

    async def failed(self, error: grpc.aio.AioRpcError, at: int) -> str:
        """Do what makes the next try a better one; return why. `at`: where it failed.

        Raises `Refused`.
        """
        said = error.details() or error.code().name.lower()
        if error.code() is grpc.StatusCode.UNAUTHENTICATED or any(
            words in said for words in _STALE_TOKEN
        ):
            if self._access.user is None:
                raise Refused(error.code(), said)
            self.forget_token()
        elif error.code() not in _AGAIN:
            raise Refused(error.code(), said)
        else:
            self.move(at)
            await self._forget_changed()
        return said

    def move(self, at: int) -> None:
        """Use another endpoint than this one from now on; others may have moved on before."""
        if self.at == at:
            self.at = (at + 1) % len(self._access.endpoints)

    def forget_token(self) -> None:
        """Authenticate before the next call."""
        self._token = None

    async def close(self) -> None:
        """Close every connection."""
        channels, self._channels = [*self._channels.values(), *self._retired], {}
        self._retired.clear()
        for channel in channels:
            await channel.close()

    # --- connections ------------------------------------------------------------------------------

    async def _channel(self, endpoint: str) -> grpc.aio.Channel:
        async with self._connecting:
            if (channel := self._channels.get(endpoint)) is None:
                channel = self._channels[endpoint] = await self._opened(endpoint)
            return channel

    async def _opened(self, endpoint: str) -> grpc.aio.Channel:
        parts = urlsplit(endpoint)
        if parts.scheme == "http":
            return grpc.aio.insecure_channel(parts.netloc, options=OPTIONS)
        name = self._access.server_name
        options = [*OPTIONS, *([("grpc.ssl_target_name_override", name)] if name else [])]
        self._stamps = await asyncio.to_thread(_stamps, self._access.files())
        try:
            credentials = await asyncio.to_thread(self._credentials)
        except OSError as error:
            raise StoreUnavailable(f"etcd: {_unreadable(error)}") from error
        return grpc.aio.secure_channel(parts.netloc, credentials, options=options)

    def _credentials(self) -> grpc.ChannelCredentials:
        def read(name: str | None) -> bytes | None:
            return None if name is None else Path(name).read_bytes()

        access = self._access
        return grpc.ssl_channel_credentials(
            read(access.ca_file), read(access.key_file), read(access.cert_file)
        )

    async def _forget_changed(self) -> None:
        """Connect anew where the files of certificates are others by now."""
        if not self._access.files():
            return
        stamps = await asyncio.to_thread(_stamps, self._access.files())
        if stamps != self._stamps:
            self._stamps = stamps
            self._retired.extend(self._channels.values())
            self._channels = {}
        while len(self._retired) > MOST_RETIRED:
            await self._retired.popleft().close()

    async def _authenticated(self, channel: grpc.aio.Channel, user: str) -> str:
        name = self._access.password_file
        try:
            password = "" if name is None else await asyncio.to_thread(Path(name).read_text)
        except OSError as error:
            raise StoreUnavailable(f"etcd: {_unreadable(error)}") from error
        request = pb.AuthenticateRequest(name=user, password=password.rstrip("\r\n"))
        return (await self._asked(channel, AUTHENTICATE, request, ())).token


class Ended(Exception):
    """A stream was ended where an answer was due."""


class Tries:
    """The tries of one call: pauses between them, and when to give up."""

    def __init__(self, calls: Calls) -> None:
        self.failed = 0
        self._calls, self._clock = calls, calls.clock
        self._deadline = self._clock.monotonic() + LIMIT_S
        self._pause_s = FIRST_PAUSE_S

    def one(self) -> "_Try":
        """Return a context that swallows what is worth another try, after a pause."""
        return _Try(self, self._calls)

    async def pause(self, why: str) -> None:
        """Wait, ever longer. Raises `StoreUnavailable` when the time is up."""
        self.failed += 1
        pause_s = self._pause_s * self._calls.rng.uniform(0.5, 1.0)
        if self._clock.monotonic() + pause_s > self._deadline:
            raise StoreUnavailable(f"etcd: {why}")
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        await self._clock.sleep(pause_s)


class _Try:
    def __init__(self, tries: Tries, calls: Calls) -> None:
        self._tries, self._calls = tries, calls
        self._at = calls.at

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        match error:
            case grpc.aio.AioRpcError():
                await self._tries.pause(await self._calls.failed(error, self._at))
            case Ended():
                self._calls.move(self._at)
                await self._tries.pause("it ended the connection")
            case _:
                return False
        return True


def _serialized(message: _Message) -> bytes:
    return message.SerializeToString()


def _stamps(files: Sequence[Path]) -> Sequence[tuple[int, int]]:
    """Return what differs when a file is another one; a missing file is one, too."""
    found = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((stat.st_ino, stat.st_mtime_ns))
    return found


def _unreadable(error: OSError) -> str:
    return f"cannot read `{error.filename}`: {(error.strerror or 'no reason').lower()}"
