"""The agent's settings: read once, strict, frozen. Never re-read while running.

`lineside.settings` reads them; each field's bounds are its annotation's, what fields must be
together is in `problems`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from agent.scrape import BUSY_S, IDLE_S
from lineside.schema import Address, FilePath, Listen, Name, Secret, shown
from lineside.settings import Problem, half_a_pair

STALE_AFTER_S = 2.0
"""Coordinators call a load stale after this (docs/protocol.md)."""


SocketPath: TypeAlias = Annotated[
    str, Meta(pattern=r"^/[^\0]{1,106}\Z", title="a path from the root, of at most 107 characters")
]
"""The system has no room for a longer one."""


class CoordinatorTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom an agent trusts, and what it shows."""

    ca_file: FilePath | None = None
    """PEM file with the authorities of coordinators' certificates, looked at again at each connect.
    `null`: the system's."""
    cert_file: FilePath | None = None
    """PEM file with this agent's certificate, which names its node
    (`spiffe://DOMAIN/node/NAME`). `null`: none is shown."""
    key_file: FilePath | None = None
    """PEM file with its private key."""
    server_name: Name | None = None
    """Name that coordinators' certificates are for. `null`: the host in `coordinators`."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        yield from half_a_pair(self.cert_file, self.key_file)


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set of an agent."""

    coordinators: Annotated[tuple[Address, ...], Meta(min_length=1)]
    """gRPC addresses of the coordinators; one stream is kept to each."""

    resolve: bool = False
    """Keep a stream to every address that these names have at the moment, as a headless Service's
    has of all its pods. `false`: one to each name."""

    transport: Literal["tls", "plaintext"] = "tls"
    """How the streams are protected. `plaintext` shows what engines hold, the token and the
    cluster's secret to whoever can listen in."""

    tls: CoordinatorTls = CoordinatorTls()
    """Certificates of the streams."""

    node: Name = "local"
    """The node's name, as the coordinators' assignments know it."""

    token: Secret = ""
    """Bearer token that the coordinators ask for; empty: none is sent."""

    token_file: FilePath | None = None
    """File with that token instead, read again at each connect: a projected ServiceAccount token,
    by which an agent proves its node."""

    metrics: Listen = "127.0.0.1:0"
    """Where `/healthz`, `/readyz` and `/metrics` listen; port 0: any free one."""

    scrape_busy_s: Annotated[float, Meta(ge=0.05, le=60)] = BUSY_S
    """Between two looks at the /metrics of a server that has requests, start to start."""

    scrape_idle_s: Annotated[float, Meta(ge=0.05, le=60)] = IDLE_S
    """The same while it has none. Each costs the server a few milliseconds."""

    checkpoint_dir: Annotated[str, Meta(min_length=1)] | None = None
    """Directory that keeps what each engine holds over a restart of the agent, written every 30 s
    and at stop. `null`: nothing is kept, and an engine's replay buffer is all there is to go by."""

    pod_resources: SocketPath | None = None
    """Unix socket of the kubelet's pod-resources API, which says which GPUs it gave to which pod:
    `/var/lib/kubelet/pod-resources/kubelet.sock`. It belongs to root. `null`: the kubelet is not
    asked, and which GPUs serve an engine is known where the coordinator's settings name them."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What goes to standard error."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        if self.transport == "plaintext":
            for name in ("ca_file", "cert_file", "key_file", "server_name"):
                if getattr(self.tls, name) is not None:
                    text = f"`{name}` has no use where `transport` is `plaintext`"
                    yield Problem((("tls", name),), "no-use", text, "leave it out, or choose `tls`")
        if self.token and self.token_file is not None:
            text = "`token_file` is there beside `token`"
            yield Problem((("token_file",),), "no-use", text, "leave one of them out")
        for number, address in enumerate(self.coordinators):
            if (first := self.coordinators.index(address)) != number:
                yield Problem(
                    (("coordinators", number), ("coordinators", first)),
                    "duplicate-coordinator",
                    f"`{address}` is named twice",
                    "one stream is kept to each coordinator",
                )
        if self.scrape_busy_s > self.scrape_idle_s:
            yield Problem(
                (("scrape_busy_s",), ("scrape_idle_s",)),
                "bounds",
                f"`scrape_busy_s` is {self.scrape_busy_s:g} s, above `scrape_idle_s`,"
                f" which is {self.scrape_idle_s:g} s",
                "busy servers are looked at more often, not less",
            )
        for name in ("scrape_busy_s", "scrape_idle_s"):
            if (pause := getattr(self, name)) >= STALE_AFTER_S:
                yield Problem(
                    ((name,),),
                    "bounds",
                    f"`{name}` is {pause:g} s, and a load is stale after {STALE_AFTER_S:g} s",
                    f"stay below {STALE_AFTER_S:g} s, or every engine would be shown as stale",
                )

    def masked(self) -> dict[str, object]:
        """Return the settings as they may be shown."""
        return shown(self)
