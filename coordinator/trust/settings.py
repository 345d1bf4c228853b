"""The settings of trust between agents and a coordinator: a part of `coordinator.config`."""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lineside.schema import FilePath, Name
from lineside.settings import Problem, half_a_pair

_POD = "/var/run/secrets/kubernetes.io/serviceaccount"

Account: TypeAlias = Annotated[
    str, Meta(pattern=r"^[a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9.]*\Z", title="NAMESPACE/NAME")
]

NodeProof: TypeAlias = Literal["certificate", "service-account", "none"]


class AgentTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How agents' connections are protected."""

    cert_file: FilePath | None = None
    """PEM file with the certificate of the agents' listener, read again when it changes."""
    key_file: FilePath | None = None
    """PEM file with its private key."""
    client_ca_file: FilePath | None = None
    """PEM file with the authorities of agents' certificates; then every agent must show one.
    `null`: none is asked for."""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the fields together."""
        yield from half_a_pair(self.cert_file, self.key_file)


class ServiceAccounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How agents' bound tokens are checked, where `node_proof` is `service-account`."""

    accounts: tuple[Account, ...] = ()
    """Accounts that agents may run as."""
    audience: Name = "lineside"
    """What agents' tokens are made for. A token for anything else is refused."""
    needs_node: bool = True
    """Refuse tokens that name no node, as clusters before Kubernetes 1.30 make them. `false`: there
    the account alone is proven, and an agent may speak for any node."""
    api_server: Annotated[
        str,
        Meta(
            pattern=r"^https?://(\[[0-9a-fA-F:.]+\]|[^/:@\s]+)(:\d{1,5})?\Z",
            title="https://HOST:PORT",
        ),
    ] = "https://kubernetes.default.svc"
    """Who says what a token is worth."""
    ca_file: FilePath | None = f"{_POD}/ca.crt"
    """PEM file with the authorities of the API server's certificate. `null`: the system's."""
    token_file: FilePath | None = f"{_POD}/token"
    """File with our own token for it, read again for each question. `null`: none is sent."""


def trust_problems(
    transport: str,
    tls: AgentTls,
    node_proof: NodeProof | None,
    accounts: ServiceAccounts,
    has_token: bool,
) -> Iterator[Problem]:
    """Yield what is wrong with the settings of trust together."""
    if transport == "tls" and tls.cert_file is None and tls.key_file is None:
        yield Problem(
            (("transport",),),
            "no-certificate",
            "`transport` is `tls`, and agents' listener has no certificate",
            "set `tls.cert_file` and `tls.key_file` (`lineside certs init` makes them), or"
            " `transport: plaintext` where nobody can listen in",
        )
    if transport == "plaintext":
        for name in ("cert_file", "key_file", "client_ca_file"):
            if getattr(tls, name) is not None:
                text = f"`{name}` has no use where `transport` is `plaintext`"
                yield Problem((("tls", name),), "no-use", text, "leave it out, or choose `tls`")
    if node_proof == "certificate" and tls.client_ca_file is None:
        yield Problem(
            (("node_proof",),),
            "no-authority",
            "nobody says which agents' certificates to trust",
            "set `tls.client_ca_file`",
        )
    if node_proof == "service-account":
        yield from _account_problems(accounts, has_token)


def _account_problems(accounts: ServiceAccounts, has_token: bool) -> Iterator[Problem]:
    if not accounts.accounts:
        yield Problem(
            (("node_proof",),),
            "nobody-allowed",
            "`service_accounts.accounts` names nobody, so that no agent may connect",
            "name the ServiceAccount that agents run as: NAMESPACE/NAME",
        )
    if has_token:
        yield Problem(
            (("agent_token",),),
            "no-use",
            "`agent_token` has no use where `node_proof` is `service-account`",
            "leave one of them out: an agent sends one token",
        )
