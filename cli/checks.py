"""What is right, missing or wrong with an engine, from what was seen of it.

Each check says one thing, what still works without it, and what to add to the engine's command
line. Asks nobody: `cli.asking` and `cli.probe` have done so.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from cli.asking import Rank, Seen, host_of
from cli.probe import Probed
from coordinator.holdings.audit import ANNOUNCES_SINCE
from coordinator.publisher import Listener
from coordinator.servers import DEFAULT_KV_PORT, DEFAULT_REPLAY_PORT
from lineside.hashing import UNIT

Level: TypeAlias = Literal["ok", "note", "warning", "problem"]

OLDEST, NEWEST = (0, 10), (0, 33)
"""Releases of vLLM whose wire formats are known."""

BUFFER_STEPS = 10_000
"""vLLM's own default."""

WITHOUT_REPLAY = "events that get lost are lost for good, a restarted agent begins with nothing"

BY_LOAD = "requests go to it by load alone"

DETAILS_FLAG = "add --enable-prompt-tokens-details"
PROBE = "lineside doctor --probe sends a short prompt twice to find out"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `help`: what to do about it; empty: nothing."""

    code: str
    level: Level
    message: str
    help: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the check for machines."""
        return {
            "code": self.code,
            "level": self.level,
            "message": self.message,
            "help": self.help,
        }


def unreached(reason: str) -> Check:
    """Return what is to be said of a server that does not answer."""
    is_key = "api_key_file" in reason
    help_ = "name a file with one line, its key" if is_key else "start it, or correct --engine"
    return Check("reached", "problem", reason, help_)


def checks(seen: Seen, probed: Sequence[Probed] | None) -> list[Check]:
    """Return all there is to say of a server; `probed` has a member for each rank, or is `None`."""
    found = [*_server(seen), *_cache(seen)]
    for at, rank in enumerate(seen.ranks):
        found += _events(seen, rank)
        if rank.engine.events and not (seen.guessed and rank.listener is not Listener.PUBLISHER):
            found += _replay(seen, rank)
        if probed is not None:
            found += _probe(seen, rank, probed[at])
    found += _tokens(seen)
    if probed is None:
        text = "whether it reports cached tokens was not looked at"
        found.append(Check("token_details", "note", text, PROBE))
    return [found[0], *dict.fromkeys(found[1:])]  # ranks that are alike are said once


# --- the server -------------------------------------------------------------------------------


def _server(seen: Seen) -> Iterator[Check]:
    names = ", ".join(f"`{model.name}`" for model in seen.found.models if model.lora is None)
    adapters = [model.name for model in seen.found.models if model.lora is not None]
    ranks = f", {len(seen.ranks)} data-parallel ranks" if len(seen.ranks) > 1 else ""
    with_them = f", {len(adapters)} adapters" if adapters else ""
    release = f"vLLM {seen.found.version}" if seen.found.version else "a server without /version"
    yield Check("reached", "ok", f"{release} serves {names}{with_them}{ranks}")
    yield from _version(seen)
    if seen.found.sources is None and len(seen.numbers) > 1 and seen.spec.rank is None:
        yield Check(
            "ranks",
            "problem",
            f"its metrics are about {len(seen.numbers)} data-parallel ranks, and this release does"
            " not name them: they are taken for one engine, whose cache cannot be followed",
            "name each rank: "
            + " ".join(f"--engine {seen.spec.url},rank={number}" for number in seen.numbers[:4]),
        )
    if any(rank.load and rank.load.asleep for rank in seen.ranks):
        yield Check("asleep", "warning", "it sleeps: it gets no requests", "wake it: POST /wake_up")


def _version(seen: Seen) -> Iterator[Check]:
    release = release_of(seen.found.version)
    if release is None:
        said = f"release `{seen.found.version}`" if seen.found.version else "no release"
        text = f"it names {said}: what it can do is found out by asking, re-announcing is left out"
        yield Check("version", "warning", text)
    elif release < OLDEST:
        text = f"vLLM before {OLDEST[0]}.{OLDEST[1]} is not known: its events may not be understood"
        yield Check("version", "warning", text, "use a newer release")
    elif release > NEWEST:
        text = f"vLLM after {NEWEST[0]}.{NEWEST[1]} was not looked at: watch `undecodable`"
        yield Check("version", "note", text)
    elif release < ANNOUNCES_SINCE:
        text = "it cannot announce its blocks anew (vLLM from 0.26): events that are lost for good"
        yield Check("version", "note", f"{text} are made up for by new prompts alone")


def release_of(version: str) -> tuple[int, int] | None:
    """Return major and minor release; `None` for what names none."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else None
    return None if release == (0, 1) else release  # what a build without tags calls itself


def _cache(seen: Seen) -> Iterator[Check]:
    if seen.metrics_failure:
        text = f"{seen.metrics_failure}: load is known by what is in flight from here alone"
        yield Check(
            "metrics", "problem", text, "let /metrics be reached, without --disable-log-stats"
        )
        return
    missing = sorted({name for rank in seen.ranks if rank.load for name in rank.load.missing})
    if missing:
        text = f"series missing in /metrics: {', '.join(missing)}"
        help = "start it without --disable-log-stats" if len(missing) > 4 else ""
        yield Check("metrics", "warning", f"{text}; what they tell is unknown", help)
    config = seen.cache_config
    if config.get("enable_prefix_caching", "True") not in ("True", "true"):
        text = f"prefix caching is off: it computes every prompt anew, so {BY_LOAD}"
        yield Check("prefix_caching", "problem", text, "add --enable-prefix-caching")
    size = next((r.load.block_size for r in seen.ranks if r.load and r.load.block_size), None)
    if size is None:
        return
    if size % UNIT:
        text = f"its blocks have {size} tokens, which is no multiple of {UNIT}: its cache cannot be"
        yield Check(
            "block_size", "problem", f"{text} matched, so {BY_LOAD}", f"add --block-size {UNIT}"
        )
        return
    blocks = next((r.load.num_gpu_blocks for r in seen.ranks if r.load), None)
    room = f", {blocks * size:,} tokens of room" if blocks else ""
    yield Check("block_size", "ok", f"blocks of {size} tokens{room}")


# --- events -----------------------------------------------------------------------------------


def _events(seen: Seen, rank: Rank) -> Iterator[Check]:
    events, of = rank.engine.events, _of(rank)
    if not events:
        text = f"KV events are off{of}: what it has cached is not known, so {BY_LOAD}"
        yield Check("events", "problem", text, f"add {events_flag()}")
    elif seen.guessed:
        yield from _guessed(rank)
    elif _is_loopback(urlsplit(events).hostname or "") and not _is_loopback(host_of(seen.spec)):
        text = f"events are published at {events}{of}, which only its own host or pod can reach:"
        yield Check("events", "problem", f"{text} {BY_LOAD}", f"publish to all: {events_flag()}")
    elif rank.listener is Listener.PUBLISHER:
        yield Check("events", "ok", f"events are published at {events}{of}, and that answers here")
    elif rank.listener is Listener.NOBODY and seen.spec.kv is not None:
        text = f"nobody publishes at {events}{of}, which `kv` names: {BY_LOAD}"
        help = "leave `kv` out where the engine names its port (vLLM 0.31 and newer), or correct it"
        yield Check(
            "events", "warning", text, f"{help}; right only if its publisher connects there"
        )
    elif rank.listener in (Listener.NOBODY, Listener.SUBSCRIBER):
        is_read = " (one listens there now)" if rank.listener is Listener.SUBSCRIBER else ""
        text = f"its publisher connects to {events}{of}, so the agent listens there{is_read}:"
        yield Check(
            "events",
            "warning",
            f"{text} that works for one agent, on the host that this address names",
            f"let it listen: {events_flag()}",
        )
    elif urlsplit(events).scheme == "ipc":
        yield Check(
            "events", "note", f"events are published at {events}{of}: for agents on its host"
        )
    else:
        text = f"events are said to be published at {events}{of}, and nothing answers there in time"
        yield Check("events", "problem", f"{text}: {BY_LOAD}", "let this host reach that port")


def _guessed(rank: Rank) -> Iterator[Check]:
    """Say what can be said of an address that was only guessed."""
    events, of = rank.engine.events, _of(rank)
    if rank.listener is not Listener.PUBLISHER:
        text = (
            f"nothing publishes at {events}{of}, vLLM's usual port, and this release does not say"
        )
        yield Check(
            "events",
            "problem",
            f"{text} whether it publishes elsewhere: {BY_LOAD}",
            f"add {events_flag()}, or name another port: --engine URL,kv=tcp://HOST:PORT",
        )
        return
    text = (
        f"something publishes at {events}{of}, vLLM's usual port: it may be another engine's. Its"
    )
    yield Check(
        "events",
        "warning",
        f"{text} events count once a request has shown that they are this engine's",
        f"say that they are: --engine URL,kv={events}",
    )


def _replay(seen: Seen, rank: Rank) -> Iterator[Check]:
    replay, of = rank.engine.replay, _of(rank)
    if not replay:
        text = f"it answers no replays{of}: {WITHOUT_REPLAY}"
        yield Check("replay", "warning", text, f"add a `replay_endpoint`: {events_flag()}")
    elif rank.replay is Listener.NOBODY:
        text = f"nothing listens for replays at {replay}{of}: {WITHOUT_REPLAY}"
        yield Check("replay", "warning", text, f"add a `replay_endpoint`: {events_flag()}")
    elif not seen.guessed:
        yield Check("replay", "ok", f"a replay socket listens at {replay}{of}")
    steps = rank.source.buffer_steps if rank.source else None
    if steps is not None and steps < BUFFER_STEPS:
        text = f"it keeps {steps} steps for replays{of}: a longer absence of the agent loses events"
        yield Check(
            "buffer_steps", "warning", text, f"add {events_flag(buffer_steps=10 * BUFFER_STEPS)}"
        )


def _replayed(rank: Rank, probed: Probed) -> Iterator[Check]:
    if probed.replays is None:
        return
    replay, of = rank.engine.replay, _of(rank)
    if probed.replays:
        text = f"the probe's events came again from {replay}{of} when they were asked for"
        yield Check("replayed", "ok", text)
    else:
        text = f"the probe's events did not come again from {replay}{of}: {WITHOUT_REPLAY}"
        yield Check("replayed", "warning", text, f"compare `replay_endpoint`: {events_flag()}")


def _of(rank: Rank) -> str:
    return "" if rank.engine.rank is None else f" by rank {rank.engine.rank}"


def events_flag(**more: Any) -> str:
    """Return the flag that turns events on as Lineside wants them."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{DEFAULT_KV_PORT}",
        "replay_endpoint": f"tcp://*:{DEFAULT_REPLAY_PORT}",
        **more,
    }
    return f"--kv-events-config '{json.dumps(config)}'"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- tokens -----------------------------------------------------------------------------------


def _tokens(seen: Seen) -> Iterator[Check]:
    if seen.ranks[0].engine.tokenizer:
        yield Check("tokenizer", "ok", f"its tokenizer is at {seen.ranks[0].engine.tokenizer}")
        return
    name = seen.found.root
    help = f"name its folder: --engine URL,tokenizer=DIR (with tokenizer.json of `{name}`)"
    if seen.tokenizes:
        text = "its tokenizer is not at hand here, so each prompt is tokenized by the engine's"
        yield Check(
            "tokenizer", "warning", f"{text} /tokenize, which a busy one answers too late", help
        )
    else:
        text = "its tokenizer is not at hand here and its /tokenize does not answer: prompts cannot"
        yield Check("tokenizer", "problem", f"{text} be matched, so {BY_LOAD}", help)


def _probe(seen: Seen, rank: Rank, probed: Probed) -> Iterator[Check]:
    of = _of(rank)
    if probed.failure:
        yield Check("probe", "warning", f"the probe could not be sent{of}: {probed.failure}")
        return
    if probed.cached_tokens is None:
        text = f"its answers do not say how much of a prompt was cached{of}: predictions are not"
        yield Check(
            "token_details", "warning", f"{text} checked, a wrong one goes unnoticed", DETAILS_FLAG
        )
    elif probed.cached_tokens:
        yield Check("token_details", "ok", f"its answers say how much of a prompt was cached{of}")
    else:
        text = f"a prompt of {probed.prompt_tokens} tokens that was sent twice hit nothing{of}"
        yield Check("prefix_caching", "problem", text, "add --enable-prefix-caching")
    if rank.engine.events:
        yield from _own_events(rank, probed)


def _own_events(rank: Rank, probed: Probed) -> Iterator[Check]:
    events, of = rank.engine.events, _of(rank)
    if probed.unreadable:
        yield Check("own_events", "problem", f"its events cannot be read{of}: {probed.unreadable}")
    elif probed.own:
        width = "32-byte" if probed.wide_hashes else "64-bit"
        text = f"the probe's blocks were announced at {events}{of}, with {width} hashes"
        yield Check("own_events", "ok", text)
        yield from _replayed(rank, probed)
    elif probed.others:
        text = (
            f"what comes from {events}{of} is not this engine's: the probe's blocks are not among"
        )
        yield Check(
            "own_events",
            "problem",
            f"{text} it",
            "give each engine an endpoint of its own, and name it: --engine URL,kv=tcp://HOST:PORT",
        )
    else:
        text = f"the probe's blocks were not announced at {events}{of}"
        yield Check("own_events", "problem", f"{text}: {BY_LOAD}", "compare `endpoint` and `topic`")
