"""Kubelets as a test plays them: a real gRPC server on a unix socket, and what it says."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from agent.kubelet import METHOD
from lineside.v1 import pod_resources_pb2 as pb

Answering = Callable[[grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]


def container(
    name: str, *devices: tuple[str, Sequence[str]], gpu: Sequence[str] = ()
) -> pb.ContainerResources:
    """Return a container with devices by the name of their resource."""
    said = [*devices, *([("nvidia.com/gpu", gpu)] if gpu else [])]
    return pb.ContainerResources(
        name=name,
        devices=[pb.ContainerDevices(resource_name=n, device_ids=ids) for n, ids in said],
    )


def answer(*pods: tuple[str, str, Sequence[object]]) -> bytes:
    """Return what a kubelet with these pods says: namespace, name, containers."""
    said = [
        pb.PodResources(namespace=namespace, name=name, containers=containers)  # type: ignore[arg-type]
        for namespace, name, containers in pods
    ]
    return pb.ListPodResourcesResponse(pod_resources=said).SerializeToString()


@asynccontextmanager
async def kubelet(path: Path, answering: Answering) -> AsyncIterator[None]:
    """Listen there until the block ends."""

    async def listed(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return await answering(context)

    service, method = METHOD.strip("/").split("/")
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    handlers = {method: grpc.unary_unary_rpc_method_handler(listed)}
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)
