"""Stands between an agent and a coordinator, passes messages on as bytes, and keeps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

METHOD = "/lineside.v1.Agents/Connect"


@dataclass
class Relay:
    """One coordinator's."""

    coordinator: str
    said: list[tuple[str, bytes]] = field(default_factory=list)
    """`up` or `down`, and a message."""

    async def connect(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Pass one stream on until either side ends it."""
        metadata = [(k, v) for k, v in context.invocation_metadata() if k == "authorization"]
        async with grpc.aio.insecure_channel(self.coordinator) as channel:
            call = channel.stream_stream(METHOD)(metadata=metadata)

            async def pump() -> None:
                async for message in requests:
                    self.said.append(("up", message))
                    await call.write(message)

            pumping = asyncio.create_task(pump())
            try:
                while isinstance(message := await call.read(), bytes):
                    self.said.append(("down", message))
                    await context.write(message)
            finally:
                pumping.cancel()
                await asyncio.gather(pumping, return_exceptions=True)


@asynccontextmanager
async def relay(coordinator: str) -> AsyncIterator[tuple[Relay, str]]:
    """Run a relay before a coordinator; give it, and where agents are to connect."""
    made = Relay(coordinator)
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(made.connect)
    service, _, method = METHOD[1:].partition("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield made, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
