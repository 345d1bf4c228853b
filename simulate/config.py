"""Settings of one simulated engine. Read by `simulate.main` and by the command line."""

import argparse
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from simulate.core import Limits, Speeds
from simulate.publisher import Addresses
from simulate.replies import VERSION

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]

_LIMITS = Limits()
_SPEEDS = Speeds()


_METAVARS = {int: "N", float: "SECONDS", str: "TEXT"}


class BadConfig(Exception):
    """Settings that no engine can run with; the message says what to change."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Each field is an option of the same name; its description is the help text."""

    host: Annotated[str, Meta(description="address to listen on, for HTTP and events")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, Meta(description="HTTP port; 0 takes a free one")] = 8000
    kv_port: Annotated[Port, Meta(description="KV events (PUB); 0 takes a free one")] = 0
    replay_port: Annotated[Port, Meta(description="KV replay (ROUTER); 0 takes a free one")] = 0
    kv_topic: Annotated[str, Meta(description="topic of the KV events")] = ""
    replay_buffer_steps: Annotated[
        int, Meta(ge=1, description="batches kept for replay; the oldest falls out")
    ] = 10_000
    kv_connect: Annotated[
        str, Meta(description="let KV events connect to this endpoint instead of listening")
    ] = ""
    kv_folder: Annotated[
        str, Meta(description="listen for events and replays on sockets in this folder, on no port")
    ] = ""
    byte_hashes: Annotated[
        bool, Meta(description="publish 32-byte block hashes, not 64-bit integers")
    ] = False

    no_kv_events: Annotated[bool, Meta(description="publish no KV events")] = False
    no_prefix_caching: Annotated[
        bool, Meta(description="compute every prompt anew, and announce nothing")
    ] = False
    no_prompt_tokens_details: Annotated[
        bool, Meta(description="say nothing of cached tokens in answers")
    ] = False
    store_responses: Annotated[
        bool, Meta(description="keep responses, as with VLLM_ENABLE_RESPONSES_API_STORE=1")
    ] = False
    pooling: Annotated[
        bool, Meta(description="serve embeddings and nothing else, as a pooling model does")
    ] = False
    release: Annotated[
        str,
        Meta(
            pattern=r"^\d+\.\d+\.\d+\Z",
            description="vLLM release to be; those before 0.31 do not say where they publish",
        ),
    ] = VERSION

    model_name: Annotated[str, Meta(min_length=1, description="the model")] = "tiny-qwen3"
    served_model_name: Annotated[
        tuple[str, ...], Meta(description="names it is served under, instead of its own")
    ] = ()
    lora: Annotated[
        tuple[str, ...], Meta(description="adapters, each served as a model of its own")
    ] = ()
    model_folder: Annotated[
        str, Meta(description="tokenizer and chat template; the tiny model's if not given")
    ] = str(Path(__file__).parent / "model")
    max_model_len: Annotated[
        int, Meta(ge=2, description="tokens of a prompt and its answer together")
    ] = 32_768
    default_max_tokens: Annotated[
        int, Meta(ge=1, description="longest answer to a chat that sets no max_tokens")
    ] = 256
    answer_tokens: Annotated[
        int, Meta(ge=2, description="usual length of an answer that may end by itself")
    ] = 64
    seed: Annotated[int, Meta(description="of the answers; equal ones answer alike")] = 0

    blocks: Annotated[int, Meta(ge=2, description="KV blocks; one of them is reserved")] = (
        _LIMITS.blocks
    )
    block_size: Annotated[int, Meta(ge=1, description="tokens of a block")] = _LIMITS.block_size
    max_num_seqs: Annotated[int, Meta(ge=1, description="requests running at once")] = (
        _LIMITS.max_num_seqs
    )
    max_num_batched_tokens: Annotated[int, Meta(ge=1, description="tokens of a step")] = (
        _LIMITS.max_num_batched_tokens
    )

    data_parallel_size: Annotated[
        int,
        Meta(ge=1, description="engines behind the one HTTP port; their event ports follow on"),
    ] = 1
    sliding_window: Annotated[
        int, Meta(ge=0, description="tokens that half of the layers look back on; 0 for all")
    ] = _LIMITS.sliding_window
    offload_blocks: Annotated[
        int, Meta(ge=0, description="evicted blocks that CPU memory has room for")
    ] = _LIMITS.offload_blocks
    faults: Annotated[
        bool, Meta(description="serve /sim/faults, which makes this engine misbehave for tests")
    ] = False

    base_step_s: Annotated[Seconds, Meta(description="seconds of a step")] = _SPEEDS.base_step_s
    prefill_s_per_token: Annotated[
        Seconds, Meta(description="seconds for each uncached prompt token")
    ] = _SPEEDS.prefill_s_per_token
    attention_s_per_token_pair: Annotated[
        Seconds, Meta(description="seconds for each of those and each token before it")
    ] = _SPEEDS.attention_s_per_token_pair
    decode_s_per_sequence: Annotated[
        Seconds, Meta(description="seconds for each sequence that decodes")
    ] = _SPEEDS.decode_s_per_sequence
    decode_s_per_context_token: Annotated[
        Seconds, Meta(description="seconds for each token of its context")
    ] = _SPEEDS.decode_s_per_context_token

    def limits(self) -> Limits:
        """Return what the scheduler may fill."""
        return Limits(
            self.blocks,
            self.block_size,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.sliding_window,
            self.offload_blocks,
            not self.no_prefix_caching,
        )

    def speeds(self) -> Speeds:
        """Return what a step takes."""
        return Speeds(
            self.base_step_s,
            self.prefill_s_per_token,
            self.attention_s_per_token_pair,
            self.decode_s_per_sequence,
            self.decode_s_per_context_token,
        )

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor release."""
        major, minor, _ = self.release.split(".")
        return int(major), int(minor)

    @property
    def publishes(self) -> bool:
        """Whether there are KV events."""
        return not (self.no_kv_events or self.no_prefix_caching)

    def addresses(self, rank: int) -> Addresses:
        """Return where a rank publishes: each next one on the next port, where ports are given.

        Raises `BadConfig`.
        """
        return Addresses(
            host=self.host,
            port=self.kv_port and self.kv_port + rank,
            replay_port=self.replay_port and self.replay_port + rank,
            connect=_next_port(self.kv_connect, rank),
            folder=self.kv_folder,
        )

    def names(self) -> tuple[str, ...]:
        """Return the names of the base model; answers and metrics use the first."""
        return self.served_model_name or (self.model_name,)


def check(config: Config) -> None:
    """Refuse what the types allow but no engine can run with. Raises `BadConfig`."""
    _check_room(config)
    if config.sliding_window and config.offload_blocks:
        raise BadConfig("--offload-blocks is not simulated together with --sliding-window")
    config.addresses(config.data_parallel_size - 1)
    if config.kv_folder and config.data_parallel_size > 1:
        raise BadConfig("--kv-folder is for one rank: vLLM has no such sockets for several")
    names = [*config.names(), *config.lora]
    if len(set(names)) < len(names):
        raise BadConfig("every --served-model-name and --lora needs a name of its own")


def _check_room(config: Config) -> None:
    groups = 2 if config.sliding_window else 1
    room = (config.blocks - 1) // groups * config.block_size
    if config.max_model_len > room:
        needed = -(-config.max_model_len // config.block_size) * groups + 1
        raise BadConfig(
            f"one request of --max-model-len {config.max_model_len} does not fit into "
            f"--blocks {config.blocks} of {config.block_size} tokens; "
            f"give {needed} blocks, or a length of at most {room}"
        )


def _next_port(endpoint: str, rank: int) -> str:
    """Return a rank's endpoint to connect to; only TCP has ports to count on from."""
    if not endpoint or not rank:
        return endpoint
    head, _, port = endpoint.rpartition(":")
    if not head.startswith("tcp://") or not port.isdecimal():
        raise BadConfig("--kv-connect for several ranks must be tcp://HOST:PORT")
    return f"{head}:{int(port) + rank}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field."""
    hints = get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        described = hints[field.name].__metadata__[-1].description
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": described}
        if field.default is False:
            options["action"] = "store_true"
        elif field.default == ():
            options |= {"action": "append", "metavar": "NAME", "help": f"{described}; repeatable"}
        else:
            kind = type(field.default)
            options |= {"type": kind, "metavar": _METAVARS[kind]}
            if field.name != "model_folder":
                options["help"] += f" (default {field.default!r})"
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)


def from_arguments(arguments: argparse.Namespace) -> Config:
    """Return the settings that the options give. Raises `BadConfig`."""
    names = {field.name for field in msgspec.structs.fields(Config)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    try:
        config = msgspec.convert(given, Config)
    except msgspec.ValidationError as error:
        raise BadConfig(str(error)) from error
    check(config)
    return config
