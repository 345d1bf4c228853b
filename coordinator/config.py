"""This process's settings: read once, strict, frozen. The defaults stand here and nowhere else."""

import difflib
import re
from typing import Any, Literal

import msgspec
import yaml

from lineside.ids import NodeId

MASK = "***"


class InvalidConfig(ValueError):
    """A configuration that cannot be used; says where and why."""


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vLLM server to route to."""

    url: str
    """Base URL of its HTTP server, http://HOST:PORT."""
    kv: str | None = None
    """ZMQ endpoint of its KV events. `None`: ask the server, else port 5557 of its host."""
    replay: str | None = None
    """ZMQ endpoint of its replay socket. `None`: as for `kv`, port 5558."""
    tokenizer: str | None = None
    """Directory with tokenizer.json. `None`: the model's own, where it is a local directory."""
    rank: int | None = None
    """Use this data-parallel rank alone. `None`: every rank that the server names."""
    topic: str | None = None
    """Subscription prefix of its KV events. `None`: everything."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://(\[[0-9a-fA-F:.]+\]|[^/:@\s]+)(:\d{1,5})?/?", self.url):
            raise ValueError("`url` must be http://HOST:PORT")


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the HTTP gateway waits for an engine, in seconds."""

    connect_s: float = 2.0
    """For a connection; the next fallback is tried after it."""
    first_token_s: float = 120.0
    """From the request to the first content of a stream; queueing and prefill included."""
    idle_s: float = 60.0
    """Between two parts of a stream."""
    total_s: float = 1800.0
    """For the whole answer."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of a coordinator."""

    transport: Literal["plaintext"]
    """How agents connect. There is only `plaintext` for now, which must be asked for by name."""
    engines: tuple[EngineSpec, ...] = ()
    """The servers to route to."""
    name: str = "coordinator"
    """What agents' logs call this process."""
    node: str = "local"
    """Name of the node whose agent reads these engines."""
    http: str = "127.0.0.1:8080"
    """Listen address of the gateway, HOST:PORT; port 0: any free one."""
    grpc: str = "127.0.0.1:9002"
    """Listen address for agents."""
    admin: str = "127.0.0.1:9090"
    """Listen address for health, metrics and debug endpoints."""
    admin_token: str | None = None
    """Bearer token for debug endpoints. `None`: they answer callers on this machine only."""
    agent_token: str | None = None
    """Bearer token that agents must send. `None`: none is asked for."""
    store: str = "memory"
    """`memory`, or `sqlite:PATH` to keep state over restarts."""
    prefill_tokens_per_s: float = 20_000.0
    """Prompt tokens that one engine computes in a second; the base of predicted latency."""
    step_s: float = 0.008
    """Seconds of one engine step, the least that a first token takes."""
    stride: int = 4
    """Every stride-th key of 16 tokens is reported by agents."""
    body_limit_bytes: int = 16 * 2**20
    """Largest request body; a larger one is refused before it is parsed."""
    probe_s: float = 2.0
    """Seconds between two looks at each engine."""
    drain_s: float = 30.0
    """Seconds that open requests get to finish after SIGTERM."""
    timeouts: Timeouts = Timeouts()
    """Of the gateway."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Of the JSON lines on standard error."""

    def __post_init__(self) -> None:
        for name in ("http", "grpc", "admin"):
            split_address(getattr(self, name), name)
        named = [(spec.url.rstrip("/"), spec.rank) for spec in self.engines]
        if twice := next((url for url, rank in named if named.count((url, rank)) > 1), None):
            raise ValueError(f"engine `{twice}` is named twice")
        if self.store != "memory" and not re.fullmatch(r"sqlite:.+", self.store):
            raise ValueError("`store` must be `memory` or `sqlite:PATH`")
        for name in ("prefill_tokens_per_s", "stride", "body_limit_bytes", "probe_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0")

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
        settings: dict[str, Any] = msgspec.to_builtins(self)
        for secret in ("agent_token", "admin_token"):
            if settings[secret] is not None:
                settings[secret] = MASK
        return settings


def split_address(address: str, name: str = "address") -> tuple[str, int]:
    """Return host and port of HOST:PORT. Raises `ValueError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"`{name}` must be HOST:PORT")
    return host.strip("[]"), int(port)


def load(text: str) -> Config:
    """Read YAML or JSON. Raises `InvalidConfig`."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise InvalidConfig(f"{where}not valid YAML or JSON") from None
    if not isinstance(document, dict):
        raise InvalidConfig("the configuration must be a mapping of settings")
    try:
        return msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise InvalidConfig(_with_hint(str(error))) from None


def _with_hint(message: str) -> str:
    unknown = re.search(r"unknown field `([^`]*)`", message)
    if unknown is None:
        return message
    known = [name for kind in (Config, EngineSpec, Timeouts) for name in kind.__struct_fields__]
    near = difflib.get_close_matches(unknown.group(1), known, n=1)
    return f"{message}; did you mean `{near[0]}`?" if near else message
