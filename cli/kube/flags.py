"""What a container's command line makes of vLLM, as far as Lineside is concerned. Pure.

Reads words as vLLM does: `--a=b` and `--a b`, `--no-a`, dotted keys of a JSON flag, and what a
shell is given to run. What a file (`--config`) or an entry point of one's own adds is not seen
here; the engine's own answers say it.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_PORT = 8000
"""vLLM's own default."""

_SHELLS = re.compile(r"(^|/)(ba|da|z)?sh$")
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_JSON_FLAG = "kv-events-config"


@dataclass(frozen=True, slots=True)
class Flags:
    """`None`: the flag is not there, so that vLLM's default holds."""

    prefix_caching: bool | None = None
    events: Mapping[str, Any] | None = None
    events_error: str = ""
    """Why `--kv-events-config` cannot be read."""
    block_size: int | None = None
    details: bool | None = None
    log_stats: bool = True
    hash_algorithm: str | None = None
    port: int = DEFAULT_PORT
    ranks: int = 1
    has_key: bool = False
    """Clients must show a key."""
    from_file: bool = False
    """`--config` adds what is not seen here."""

    @property
    def publishes(self) -> bool:
        """Whether it publishes events over ZMQ: both have to be asked for."""
        said = self.events or {}
        on = said.get("enable_kv_cache_events") in (True, "True", "true")
        return on and said.get("publisher", "zmq" if on else "null") == "zmq"


@dataclass(slots=True)
class _Words:
    said: dict[str, str] = field(default_factory=dict)
    dotted: dict[str, str] = field(default_factory=dict)


def is_vllm(container: Mapping[str, Any]) -> bool:
    """Whether a container runs vLLM, as its image or its command tells."""
    words = [str(container.get("image", "")).rpartition("@")[0] or str(container.get("image", ""))]
    words += [str(word) for word in (*container.get("command", ()), *container.get("args", ()))[:6]]
    return any(re.search(r"\bvllm\b", word) for word in words)


def flags_of(container: Mapping[str, Any]) -> Flags:
    """Return what a container's words say."""
    variables = {
        str(each.get("name")): str(each["value"])
        for each in container.get("env", ())
        if "value" in each
    }
    words = [
        _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), str(word))
        for word in (*container.get("command", ()), *container.get("args", ()))
    ]
    said = _said(list(_unwrapped(words)))
    named = {str(each.get("name")) for each in container.get("env", ())}
    events, error = _events(said)
    return Flags(
        prefix_caching=_switch(said.said, "enable-prefix-caching"),
        events=events,
        events_error=error,
        block_size=_number(said.said.get("block-size")),
        details=_switch(said.said, "enable-prompt-tokens-details"),
        log_stats=_switch(said.said, "disable-log-stats") is not True,
        hash_algorithm=said.said.get("prefix-caching-hash-algo"),
        port=_number(said.said.get("port")) or DEFAULT_PORT,
        ranks=_number(said.said.get("data-parallel-size") or said.said.get("dp")) or 1,
        has_key="api-key" in said.said or "VLLM_API_KEY" in named,
        from_file="config" in said.said,
    )


def _unwrapped(words: Sequence[str]) -> Iterator[str]:
    """Yield the words; those of a line that a shell is given to run, one by one."""
    for number, word in enumerate(words):
        is_line = number > 1 and words[number - 1] in ("-c", "-lc", "-ec", "-euc")
        if is_line and _SHELLS.search(words[number - 2]):
            try:
                yield from shlex.split(word, comments=True)
            except ValueError:  # a quote that is never closed: the shell would refuse it, too
                yield word
        else:
            yield word


def _said(words: Sequence[str]) -> _Words:
    found = _Words()
    for number, word in enumerate(words):
        if not word.startswith("-") or word.startswith("---"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            after = words[number + 1] if number + 1 < len(words) else ""
            value = "" if after.startswith("--") else after
        name, _, key = name.partition(".")
        name = name.replace("_", "-")
        if key and name == _JSON_FLAG:
            found.dotted[key] = value
        else:
            found.said[name] = value
    return found


def _switch(said: Mapping[str, str], name: str) -> bool | None:
    if f"no-{name}" in said:
        return False
    if name not in said:
        return None
    return said[name].lower() not in ("false", "0")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _events(said: _Words) -> tuple[Mapping[str, Any] | None, str]:
    text = said.said.get(_JSON_FLAG)
    if text is None:
        return (dict(said.dotted) or None), ""
    try:
        read = json.loads(text)
    except ValueError:
        return None, "it is no JSON"
    if not isinstance(read, dict):
        return None, "it is no JSON object"
    return {**read, **said.dotted}, ""
