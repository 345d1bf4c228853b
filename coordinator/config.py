"""The coordinator's settings: read once, strict, frozen. The defaults stand here and nowhere else.

`lineside.settings` reads them; each field's bounds are its annotation's, what fields must be
together is in `problems`.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from coordinator.kube.settings import Kubernetes, kubernetes_problems
from coordinator.state.settings import EtcdAccess
from coordinator.trust.settings import AgentTls, NodeProof, ServiceAccounts, trust_problems
from lineside.ids import NodeId
from lineside.schema import FilePath, Listen, Name, Secret, shown, split_address
from lineside.settings import Problem, half_a_pair

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86_400)]

ServerUrl: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^https?://(\[[0-9a-fA-F:.]+\]|[^/:@\s]+)(:\d{1,5})?/?\Z",
        title="http://HOST:PORT",
    ),
]

ZmqEndpoint: TypeAlias = Annotated[
    str, Meta(pattern=r"^(tcp|ipc)://\S+\Z", title="tcp://HOST:PORT or ipc://PATH")
]

GpuUuid: TypeAlias = Annotated[str, Meta(pattern=r"^GPU-[0-9A-Za-z-]+\Z", title="GPU-UUID")]


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vLLM server to route to."""

    url: ServerUrl
    """Base URL of its HTTP server."""
    kv: ZmqEndpoint | None = None
    """ZMQ endpoint of its KV events. `null`: ask the server, else port 5557 of its host."""
    replay: ZmqEndpoint | None = None
    """ZMQ endpoint of its replay socket. `null`: as for `kv`, port 5558."""
    tokenizer: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Directory with tokenizer.json, or ORG/NAME or ORG/NAME@REVISION at a model hub. `null`: what
    the server names as its model, if that is a local directory or such a name."""
    rank: Annotated[int, Meta(ge=0, le=4095)] | None = None
    """Use this data-parallel rank alone. `null`: every rank that the server names."""
    topic: str | None = None
    """Subscription prefix of its KV events. `null`: everything."""
    node: Name | None = None
    """Name of the node whose agent reads it. `null`: the coordinator's `node`."""
    gpus: tuple[GpuUuid, ...] = ()
    """UUIDs of the GPUs that serve it, as `nvidia-smi -L` prints them. None: not known, and with
    them the `gpuUtilization` that policies may ask for."""
    api_key_file: FilePath | None = None
    """File with the key that the server wants (`--api-key`), read again when it changes. `null`: it
    wants none."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        if self.kv is not None and self.kv == self.replay:
            yield Problem(
                (("replay",), ("kv",)),
                "same-address",
                "`replay` is the same endpoint as `kv`",
                "a server publishes events and answers replays on two sockets",
            )


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the HTTP gateway waits for an engine."""

    connect_s: Seconds = 2.0
    """For a connection; the next fallback is tried after it."""
    first_token_s: Seconds = 120.0
    """From the request to the first content of a stream; queueing and prefill included."""
    idle_s: Seconds = 60.0
    """Between two parts of a stream."""
    total_s: Seconds = 1800.0
    """For the whole answer."""
    receive_s: Seconds = 75.0
    """For a client's request: its head, then its body. An idle connection is kept as long."""

    def problems(self) -> Iterator[Problem]:
        """Yield each part that is longer than the whole, and so would never end."""
        for name in ("connect_s", "first_token_s", "idle_s"):
            if (part := getattr(self, name)) > self.total_s:
                yield Problem(
                    ((name,), ("total_s",)),
                    "bounds",
                    f"`{name}` is {part:g} s, above `total_s`, which is {self.total_s:g} s",
                    f"lower `{name}` or raise `total_s`: the whole answer ends first",
                )


class Gateway(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One gateway that may ask where to send requests. It may say whose they are."""

    name: Name
    """What logs call it."""
    token_file: FilePath | None = None
    """File with its bearer token, read again when it changes."""
    certificate: Name | None = None
    """Common name of its client certificate, which `gateways.client_ca_file` must have signed."""
    credentials: bool = False
    """Give it the keys of engines and providers, as headers to set. `false`: it has its own."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        if (self.token_file is None) == (self.certificate is None):
            yield Problem(
                (("name",),),
                "one-proof",
                f"gateway `{self.name}` must have either a `token_file` or a `certificate`",
                "by one of them it is known; over plaintext only a token is",
            )


class Gateways(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may ask where to send requests, and how their connections are protected."""

    allowed: tuple[Gateway, ...] = ()
    """The gateways that may ask; the table below has their settings."""
    anonymous: bool = False
    """Answer whoever asks from this machine, too, and says nothing of whose the request is."""
    transport: Literal["tls", "plaintext"] = "tls"
    """Of the gRPC listener. `plaintext` shows tokens and prompts to whoever can listen in."""
    cert_file: FilePath | None = None
    """PEM file with the listener's certificate, read again when it changes. `null`: one that this
    process signs by itself."""
    key_file: FilePath | None = None
    """PEM file with its private key."""
    client_ca_file: FilePath | None = None
    """PEM file with the authorities of gateways' certificates; then every caller must show one."""
    self_signed_dir: FilePath | None = None
    """Directory that keeps the self-signed certificate, `tls.crt`, for gateways to trust. `null`:
    in memory, another one at each start."""
    leave_s: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    """How long gateways are still answered after SIGTERM, told by gRPC health to go elsewhere."""
    report_s: Seconds = 120.0
    """How long a decision counts as in flight of which no gateway reports anything."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        yield from half_a_pair(self.cert_file, self.key_file)
        if self.cert_file is not None and self.self_signed_dir is not None:
            text = "`self_signed_dir` has no use beside `cert_file`"
            yield Problem((("self_signed_dir",),), "no-use", text, "leave one of them out")
        yield from self._of_transport()
        names: dict[str, int] = {}
        for number, gateway in enumerate(self.allowed):
            if (first := names.setdefault(gateway.name, number)) != number:
                yield Problem(
                    (("allowed", number, "name"), ("allowed", first, "name")),
                    "duplicate-gateway",
                    f"gateway `{gateway.name}` is named twice",
                    "reports and logs know gateways by name",
                )

    def _of_transport(self) -> Iterator[Problem]:
        if self.transport == "plaintext":
            for name in ("cert_file", "key_file", "client_ca_file", "self_signed_dir"):
                if getattr(self, name) is not None:
                    text = f"`{name}` has no use where `transport` is `plaintext`"
                    yield Problem(((name,),), "no-use", text, "leave it out, or choose `tls`")
        if self.client_ca_file is None:
            for number, gateway in enumerate(self.allowed):
                if gateway.certificate is not None:
                    yield Problem(
                        (("allowed", number, "certificate"),),
                        "no-authority",
                        "nobody says which certificates to trust",
                        "set `gateways.client_ca_file`",
                    )


class Envoy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gateways that run Envoy and ask by external processing, on the listener `route`."""

    anonymous: bool = False
    """Let gateways ask that show neither token nor certificate, from anywhere: few Envoys can be
    made to. Whoever reaches the listener may then ask, so keep others from it."""
    decide_s: Seconds = 5.0
    """For one decision; after it the client gets a 503."""
    endpoints: Annotated[int, Meta(ge=1, le=8)] = 1
    """Endpoints that are named to the gateway, the first for the request and the others for
    failures. Above 1 only where its load balancer goes through a list, as `override_host` does."""
    answers: Literal["none", "served", "usage"] = "served"
    """What is read of answers: nothing, their head with the endpoint that served, or all of them,
    to count tokens. Where the gateway wants answers back they always come by, read or not."""
    backend_header: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}\Z")] = "x-lineside-backend"
    """Header that names a provider; the gateway's routes lead there by it."""
    tenant_header: Name | None = None
    """Header in which a known gateway says whose a request is; it must take out the clients' own.
    `null`: it says nothing."""
    conformance: bool = False
    """Answer the hooks of the Gateway API conformance suite. Lets clients choose endpoints."""


class ModelHub(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tokenizers come from that are named ORG/NAME; weights are never fetched."""

    fetch: bool = True
    """Fetch tokenizers that are named ORG/NAME. `false`: engines are asked to tokenize instead."""
    url: ServerUrl | None = None
    """The hub. `null`: what its library knows (`HF_ENDPOINT`), usually Hugging Face's."""
    cache: FilePath | None = None
    """Directory that keeps what was fetched. `null`: the library's own (`HF_HOME`), which engines
    on the same machine share."""
    token_file: FilePath | None = None
    """File with an access token. `null`: what the library finds (`HF_TOKEN`, a login)."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of a coordinator."""

    transport: Literal["tls", "plaintext"] = "tls"
    """How agents connect. `plaintext` shows what engines hold, tokens and the cluster's secret to
    whoever can listen in."""
    engines: tuple[EngineSpec, ...] = ()
    """The servers to route to; the table below has their settings."""
    name: Name = "coordinator"
    """What agents' logs call this process."""
    node: Name = "local"
    """Name of the node whose agent reads the engines that name none."""
    http: Listen = "127.0.0.1:8080"
    """Listen address of the gateway; port 0: any free one."""
    grpc: Listen = "127.0.0.1:9001"
    """Listen address for agents."""
    route: Listen | None = None
    """Listen address for gateways that ask where to send requests, over gRPC; most expect port
    9002. `null`: there is none."""
    admin: Annotated[Listen, Meta(extra={"variable": False})] = "127.0.0.1:9090"
    """Listen address for health, metrics and debug endpoints. No variable: `LINESIDE_ADMIN` tells
    the command line whom to ask."""
    admin_token: Secret | None = None
    """Bearer token for debug endpoints. `null`: they answer callers on this machine only."""
    agent_token: Secret | None = None
    """Bearer token that agents must send. `null`: none is asked for."""
    tls: AgentTls = AgentTls()
    """Certificates of agents' connections."""
    node_proof: NodeProof | None = None
    """How an agent proves which node it speaks for: by its certificate, or by the token of its
    ServiceAccount. `none`: it need not. `null`: `certificate` with `tls.client_ca_file`, else
    `none`."""
    service_accounts: ServiceAccounts = ServiceAccounts()
    """Of agents that prove their node by a token."""
    store: Annotated[
        str,
        Meta(
            pattern=r"^(memory|sqlite:.+|etcd:https?://[^/,\s]+(,https?://[^/,\s]+)*)\Z",
            title="`memory`, sqlite:PATH or etcd:http://HOST:PORT,...",
        ),
    ] = "memory"
    """Where state is kept: in memory, in a file that outlives restarts, or in an etcd that several
    coordinators share, named by its members."""
    etcd: EtcdAccess = EtcdAccess()
    """How to reach that etcd."""
    advertise: Name | None = None
    """Host or address by which other machines reach this coordinator. `null`: what it listens
    on."""
    prefill_tokens_per_s: Annotated[float, Meta(gt=0, le=1e9)] = 20_000.0
    """Prompt tokens that one engine computes in a second; the base of predicted latency."""
    step_s: Annotated[float, Meta(gt=0, le=60)] = 0.008
    """One engine step, the least that a first token takes."""
    stride: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Every stride-th key of 16 tokens is reported by agents."""
    index_bytes: Annotated[int, Meta(ge=2**20, le=2**40)] = 2**30
    """Cap of the index. Near it the model with the most keys is reported by every second key, then
    by every fourth, and so on: overlaps get coarser, nothing is forgotten."""
    announce_share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Share of the requests to an engine whose events were lost that ask it to announce anew the
    blocks they hit (vLLM from 0.26), until what is known of its cache proves right."""
    resources: FilePath | None = None
    """Folder or file of policies, pools, worker sets and providers, watched for changes. `null`:
    what `lineside apply` put into the store."""
    kubernetes: Kubernetes = Kubernetes()
    """The cluster whose custom resources are in force and whose pods are engines."""
    tags: tuple[Annotated[str, Meta(pattern=r"^[^=,\s]+(=(present|absent|unknown))?\Z")], ...] = ()
    """Tags of every request: `NAME`, or `NAME=absent`. One that nothing names is unknown."""
    tags_header: Name | None = None
    """Header in which a trusted gateway lists a request's tags in the same way. Set it only where
    clients cannot send it themselves."""
    cors_origins: tuple[
        Annotated[str, Meta(pattern=r"^(\*|https?://[^/\s]+)\Z", title="http://HOST or *")], ...
    ] = ()
    """Origins whose pages may call the gateway from a browser; `*`: any. None by default."""
    body_limit_bytes: Annotated[int, Meta(ge=1, le=2**30)] = 16 * 2**20
    """Largest request body; a larger one is refused before it is parsed."""
    stalled_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """An engine that has requests and reports no progress for this long is not used meanwhile."""
    shed_wait_s: Annotated[float, Meta(gt=0, le=86_400)] = 120.0
    """Predicted wait from which on an engine gets no more; when all are there, requests get 429."""
    probe_s: Annotated[float, Meta(gt=0, le=3600)] = 2.0
    """Between two looks at each engine."""
    drain_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """What open requests get to finish in after SIGTERM."""
    timeouts: Timeouts = Timeouts()
    """Of the gateway."""
    gateways: Gateways = Gateways()
    """Who may ask where to send requests."""
    envoy: Envoy = Envoy()
    """Of gateways that run Envoy."""
    hub: ModelHub = ModelHub()
    """Where tokenizers that are named ORG/NAME come from."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Of the JSON lines on standard error."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        yield from trust_problems(
            self.transport,
            self.tls,
            self.node_proof,
            self.service_accounts,
            self.agent_token is not None,
        )
        listeners = ("http", "grpc", "admin", *(("route",) if self.route else ()))
        for one, other in combinations(listeners, 2):
            if _clash(getattr(self, one), getattr(self, other)):
                yield Problem(
                    ((other,), (one,)),
                    "same-address",
                    f"`{other}` listens where `{one}` does, on `{getattr(self, other)}`",
                    "give each listener a port of its own; port 0 takes any free one",
                )
        if self.route and not (self.gateways.allowed or self.gateways.anonymous):
            yield Problem(
                (("route",),),
                "nobody-allowed",
                "`route` listens, and nobody may ask",
                "name `gateways.allowed`, or set `gateways.anonymous` for this machine",
            )
        yield from kubernetes_problems(self.kubernetes, self.resources)
        seen: dict[tuple[str, int | None], int] = {}
        for number, spec in enumerate(self.engines):
            first = seen.setdefault((spec.url.rstrip("/"), spec.rank), number)
            if first != number:
                yield Problem(
                    (("engines", number, "url"), ("engines", first, "url")),
                    "duplicate-engine",
                    f"`{spec.url}` is named twice with the same rank",
                    f"the first is entry {first + 1} of `engines`",
                )

    @property
    def node_id(self) -> NodeId:
        """The node, as an id."""
        return NodeId(self.node)

    def shown(self) -> dict[str, Any]:
        """Return the settings for people, secrets masked."""
        return shown(self)


def _clash(one: str, other: str) -> bool:
    """Whether two listeners want the same port; no host or 0.0.0.0 is every interface."""
    (host, port), (other_host, other_port) = split_address(one), split_address(other)
    every = {"", "0.0.0.0", "::"}
    return port == other_port != 0 and (host == other_host or bool({host, other_host} & every))
