"""The gRPC listener for gateways: TLS or not, health, reflection, and the services given to it.

Health tells gateways whether to ask here: as readiness says, and no more once `leave` was called.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from coordinator.doors.door_grpc import SERVICE, RouterServicer
from coordinator.doors.gateway_tls import GatewayTls
from coordinator.doors.listeners import CLOSE_S
from lineside.schema import bound, split_address
from lineside.v1 import router_pb2_grpc as rpc

LIVENESS = "liveness"
HEALTH_NAMES = (
    "",
    "readiness",
    SERVICE,
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
)
"""What gateways ask the health of, to know whether to send requests here."""

MOST_CALLS = 50_000
"""Calls at a time, streams of gateways among them; another one is `RESOURCE_EXHAUSTED`."""

MESSAGE_SLACK = 2**20
"""What a message holds beside a body: headers, a subset."""

Registration: TypeAlias = Callable[[grpc.aio.Server], None]
"""Adds a service to a server."""


class Health:
    """Whether to ask here, as gRPC's health service says it. `look` must be called regularly."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._leaving = False
        self.servicer = health.aio.HealthServicer()

    async def look(self) -> None:
        """Say what readiness says now."""
        await self.servicer.set(LIVENESS, _SERVING)
        state = _SERVING if self._ready() and not self._leaving else _NOT_SERVING
        for name in HEALTH_NAMES:
            await self.servicer.set(name, state)

    async def leave(self) -> None:
        """Send gateways away, for good."""
        self._leaving = True
        await self.look()


_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GatewayListener:
    """Serves gateways on an address of its own."""

    def __init__(
        self,
        tls: GatewayTls,
        router: RouterServicer,
        body_limit_bytes: int,
        ready: Callable[[], bool],
        others: Sequence[Registration] = (),
    ) -> None:
        self.health = Health(ready)
        self._tls = tls
        self._router = router
        self._body_limit = body_limit_bytes
        self._others = others

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[str]:
        """Serve; give the address that was bound. Raises `OSError` where that cannot be."""
        host, _ = split_address(address)
        server = grpc.aio.server(
            options=_options(self._body_limit), maximum_concurrent_rpcs=MOST_CALLS
        )
        rpc.add_RouterServicer_to_server(self._router, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        for register in self._others:
            register(server)
        await self.health.look()
        port = _bind(server, address if host else f"[::]{address}", self._tls, host)
        await server.start()
        try:
            yield f"{address.rpartition(':')[0]}:{port}"
        finally:
            await server.stop(CLOSE_S)


def _options(body_limit_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", body_limit_bytes + MESSAGE_SLACK),
        ("grpc.so_reuseport", 0),  # a second coordinator on the same address is an error
        ("grpc.keepalive_time_ms", 30_000),  # a gateway that vanished is noticed within 40 s
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _bind(server: grpc.aio.Server, address: str, tls: GatewayTls, host: str) -> int:
    credentials = tls.begun(host)
    try:
        if credentials is None:
            return server.add_insecure_port(bound(address))
        return server.add_secure_port(bound(address), credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on `{address}` for gateways") from error
