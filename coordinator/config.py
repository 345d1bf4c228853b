"""The coordinator's settings: read once, strict, frozen. The defaults stand here and nowhere else.

`lineside.settings` reads them; each field's bounds are its annotation's, what fields must be
together is in `problems`.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lineside.ids import NodeId
from lineside.schema import Listen, Name, Secret, shown, split_address
from lineside.settings import Problem

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
    api_key_file: Name | None = None
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


class ModelHub(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tokenizers come from that are named ORG/NAME; weights are never fetched."""

    fetch: bool = True
    """Fetch tokenizers that are named ORG/NAME. `false`: engines are asked to tokenize instead."""
    url: ServerUrl | None = None
    """The hub. `null`: what its library knows (`HF_ENDPOINT`), usually Hugging Face's."""
    cache: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Directory that keeps what was fetched. `null`: the library's own (`HF_HOME`), which engines
    on the same machine share."""
    token_file: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """File with an access token. `null`: what the library finds (`HF_TOKEN`, a login)."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of a coordinator."""

    transport: Literal["plaintext"]
    """How agents connect. There is only `plaintext` for now, which must be asked for by name."""
    engines: tuple[EngineSpec, ...] = ()
    """The servers to route to; the table below has their settings."""
    name: Name = "coordinator"
    """What agents' logs call this process."""
    node: Name = "local"
    """Name of the node whose agent reads the engines that name none."""
    http: Listen = "127.0.0.1:8080"
    """Listen address of the gateway; port 0: any free one."""
    grpc: Listen = "127.0.0.1:9002"
    """Listen address for agents."""
    admin: Annotated[Listen, Meta(extra={"variable": False})] = "127.0.0.1:9090"
    """Listen address for health, metrics and debug endpoints. No variable: `LINESIDE_ADMIN` tells
    the command line whom to ask."""
    admin_token: Secret | None = None
    """Bearer token for debug endpoints. `null`: they answer callers on this machine only."""
    agent_token: Secret | None = None
    """Bearer token that agents must send. `null`: none is asked for."""
    store: Annotated[
        str, Meta(pattern=r"^(memory|sqlite:.+)\Z", title="`memory` or sqlite:PATH")
    ] = "memory"
    """Where state is kept: in memory, or in a file that outlives restarts."""
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
    resources: Name | None = None
    """Folder or file of policies, pools, worker sets and providers, watched for changes."""
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
    hub: ModelHub = ModelHub()
    """Where tokenizers that are named ORG/NAME come from."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Of the JSON lines on standard error."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        for one, other in combinations(("http", "grpc", "admin"), 2):
            if _clash(getattr(self, one), getattr(self, other)):
                yield Problem(
                    ((other,), (one,)),
                    "same-address",
                    f"`{other}` listens where `{one}` does, on `{getattr(self, other)}`",
                    "give each listener a port of its own; port 0 takes any free one",
                )
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

    @property
    def store_path(self) -> str:
        """What SQLite opens."""
        return ":memory:" if self.store == "memory" else self.store.removeprefix("sqlite:")

    def shown(self) -> dict[str, Any]:
        """Return the settings for people, secrets masked."""
        return shown(self)


def _clash(one: str, other: str) -> bool:
    """Whether two listeners want the same port; no host or 0.0.0.0 is every interface."""
    (host, port), (other_host, other_port) = split_address(one), split_address(other)
    every = {"", "0.0.0.0", "::"}
    return port == other_port != 0 and (host == other_host or bool({host, other_host} & every))
