"""The agent's configuration: one strict document, read once. Never re-read while running."""

from typing import Annotated, Literal

import msgspec
import yaml


class ConfigError(Exception):
    """The document cannot be used. Says where and why, in one line."""


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set of an agent."""

    coordinators: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """gRPC addresses, `HOST:PORT`; one stream is kept to each."""

    transport: Literal["plaintext"]
    """How the streams are protected. The only choice for now, so it has to be named."""

    node: Annotated[str, msgspec.Meta(min_length=1)] = "local"
    """The node's name, as the coordinators' assignments know it."""

    token: str = ""
    """Bearer token that the coordinators ask for; empty: none is sent. Masked wherever shown."""

    metrics: str = "127.0.0.1:0"
    """Where `/healthz`, `/readyz` and `/metrics` listen, `HOST:PORT`; port 0: any free one."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What goes to standard error."""

    def __post_init__(self) -> None:
        for address in (*self.coordinators, self.metrics):
            address_of(address)

    def masked(self) -> dict[str, object]:
        """Return the document as it may be shown."""
        shown: dict[str, object] = msgspec.to_builtins(self)
        return shown | {"token": "***" if self.token else ""}


def parse(document: bytes) -> AgentConfig:
    """Read YAML or JSON. Raises `ConfigError`."""
    try:
        return msgspec.yaml.decode(document, type=AgentConfig)
    except (msgspec.MsgspecError, yaml.YAMLError) as error:
        raise ConfigError(" ".join(str(error).split())) from error


def address_of(text: str) -> tuple[str, int]:
    """Split `HOST:PORT`; brackets of an IPv6 host are dropped. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"`{text}` is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
