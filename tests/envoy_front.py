"""A coordinator behind a real Envoy, which has a route to each provider: a door for any client."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.config import EngineSpec, Envoy, Gateway, Gateways
from tests import gateways
from tests.envoys import FD, cluster, envoy, ext_proc, listener, picking, to_provider
from tests.gateways import Running
from tests.waiting import until

TOKEN = "between-envoy-and-coordinator"


@asynccontextmanager
async def behind_envoy(
    specs: Sequence[EngineSpec],
    providers: Mapping[str, str],
    request: str = FD,
    response: str = FD,
    known: bool = True,
    **settings: Any,
) -> AsyncIterator[tuple[Running, str]]:
    """Run both; give the coordinator, and where clients ask Envoy.

    `providers`: base URLs by name. `known`: this Envoy shows a token, and is told providers' keys.
    """
    with TemporaryDirectory(prefix="lineside-envoy-") as folder:
        file = Path(folder) / "token"
        file.write_text(TOKEN)
        allowed = (Gateway(name="envoy", token_file=str(file), credentials=True),)
        settings = {
            "route": "127.0.0.1:0",
            "gateways": Gateways(
                transport="plaintext", anonymous=True, allowed=allowed, leave_s=0.0
            ),
            "envoy": Envoy(answers="usage"),
        } | settings
        async with gateways.coordinator(*specs, **settings) as running:
            await until(running.ready)
            shown = [{"key": "authorization", "value": f"Bearer {TOKEN}"}] if known else []
            asks = {"envoy_grpc": {"cluster_name": "picker"}, "initial_metadata": shown}
            filters = ext_proc(request=request, response=response, grpc_service=asks)
            hosts = {name: url.removeprefix("http://") for name, url in providers.items()}
            routes = [to_provider(name, host) for name, host in hosts.items()]
            clusters = [
                picking("pool", [spec.url.removeprefix("http://") for spec in specs]),
                cluster("picker", [running.route], http2=True),
                *(cluster(name, [host]) for name, host in hosts.items()),
            ]
            with envoy([listener("door", filters, routes=routes)], clusters) as urls:
                yield running, urls["door"]
