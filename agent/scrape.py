"""A vLLM server's /metrics, read into the loads of the engines behind it.

`parse` is pure and looks at the wanted series only: a page is 60 to 83 kB, a scrape wants a
dozen lines of it. A series that is missing, or whose value cannot be, is `None` and named in
`missing`; it never becomes a number. One task per server fetches; it writes nothing but its result.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import aiohttp

from lineside.clock import Clock
from lineside.signals import Load

BUSY_S = 0.5
IDLE_S = 1.8
"""Between scrapes, start to start: each costs the engine's server a few milliseconds. Idle is a
little under the 2 s after which coordinators call a load stale."""

CONNECT_TIMEOUT_S = 1.0
TIMEOUT_S = 5.0
"""For the whole page; a server that is busy tokenizing can be slow and well."""

MAX_PAGE_BYTES = 8 << 20
"""About a hundred times a usual page; a longer one is given up as not vLLM's."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Between two scrapes of a server, start to start."""

    busy_s: float = BUSY_S
    idle_s: float = IDLE_S


USUAL = Pauses()


Failure: TypeAlias = Literal["connect", "timeout", "status", "size", "protocol"]


@dataclass(frozen=True, slots=True)
class ScrapeFailed:
    """No page was had. `detail` is a sentence for people."""

    failure: Failure
    detail: str


# --- the page ---------------------------------------------------------------------------------

_SERIES = {
    "waiting": "vllm:num_requests_waiting",
    "running": "vllm:num_requests_running",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "prefills": "vllm:time_to_first_token_seconds_count",
}
"""Field of `Load` -> series in the newest release known."""

_OLDER = {
    "kv_cache_usage": ("vllm:gpu_cache_usage_perc", (0, 14)),
    "prefix_cache_queries": ("vllm:gpu_prefix_cache_queries_total", (0, 14)),
    "prefix_cache_hits": ("vllm:gpu_prefix_cache_hits_total", (0, 14)),
}
"""Field -> an older name and the first release that surely lacks it."""

_MOST = {"waiting": 2**32 - 1, "running": 2**32 - 1, "kv_cache_usage": 1}
"""What is more than this is no measurement."""

_CONFIG = "vllm:cache_config_info"
_SLEEP = "vllm:engine_sleep_state"
_GIVEN_BACK = "of " + _SLEEP
_START = b"process_start_time_seconds"

_SAMPLE = re.compile(rb'((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}\s*(\S+)')
_ENGINE = re.compile(rb'(?:^|,)\s*engine="(\d{1,6})"')  # a quote inside a value is escaped
_LABEL = re.compile(rb'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')

_Number: TypeAlias = int | float
_Page: TypeAlias = dict[int, dict[str, _Number]]


def parse(body: bytes, ranks: Iterable[int], version: str = "") -> dict[int, Load]:
    """Return the load of each asked rank, by the names that `version` uses (empty: by all).

    The first sample of a series that makes sense wins, as it does in Prometheus.
    """
    names = _names(version)
    page, start = _samples(body, {name.encode() for known in names.values() for name in known})
    return {rank: _load(_rank(page, rank), names, len(page), start) for rank in ranks}


def _names(version: str) -> dict[str, tuple[str, ...]]:
    release = _release(version)
    names: dict[str, tuple[str, ...]] = {}
    for field, newest in _SERIES.items():
        older, gone = _OLDER.get(field, ("", (0, 0)))
        names[field] = (newest, older) if older and (not release or release < gone) else (newest,)
    return names


def _release(version: str) -> tuple[int, int] | None:
    """Return major and minor; `None` for what is no release, such as a build from source."""
    matched = re.match(r"v?(\d+)\.(\d+)\.\d+(?!\.?dev)", version)
    return (int(matched[1]), int(matched[2])) if matched else None


def _samples(body: bytes, wanted: set[bytes]) -> tuple[_Page, float | None]:
    """Return the wanted series by engine number, and when the server's process started."""
    config, sleep = _CONFIG.encode(), _SLEEP.encode()
    page: _Page = {}
    start = None
    for line in body.split(b"\n"):
        name, brace, rest = line.partition(b"{")
        if not brace:
            if line.startswith(_START):
                start = start or _number(line[len(_START) :].split()[:1])
        elif name in wanted or name in (config, sleep):
            if not (sample := _SAMPLE.match(rest)):
                continue
            labels, value = sample.groups()
            engine = _ENGINE.search(labels)
            series = page.setdefault(int(engine[1]) if engine else 0, {})
            if name == config:
                _config(series, labels)
            elif name == sleep:
                _sleep(series, labels, _number([value]))
            else:
                _keep(series, name.decode(), _number([value]))
    return page, start


def _number(words: list[bytes]) -> float | None:
    """Return a finite, plausible value; no counter or gauge read here is ever negative."""
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if 0 <= value < 2**53 else None


def _keep(series: dict[str, _Number], name: str, value: _Number | None) -> None:
    if value is not None:
        series.setdefault(name, value)


def _sleep(series: dict[str, _Number], labels: bytes, value: _Number | None) -> None:
    """Note whether the engine sleeps, and whether deep enough to have lost its cache.

    At level 0 it is only paused: not awake, and nothing is offloaded or discarded.
    """
    awake = b'sleep_state="awake"' in labels
    given_back = 0 if awake or not value else 1
    series[_SLEEP] = max(series.get(_SLEEP, 0), int(value == 0) if awake else given_back)
    series[_GIVEN_BACK] = max(series.get(_GIVEN_BACK, 0), given_back)


def _config(series: dict[str, _Number], labels: bytes) -> None:
    for label, text in _LABEL.findall(labels):
        if label in (b"block_size", b"num_gpu_blocks"):
            plausible = text.isdigit() and len(text) < 10 and int(text) > 0
            _keep(series, label.decode(), int(text) if plausible else None)


def cache_config(body: bytes) -> dict[str, str]:
    """Return what a page says of the cache's configuration, of the first engine; empty: nothing."""
    line = next(
        (line for line in body.split(b"\n") if line.startswith(_CONFIG.encode() + b"{")), b""
    )
    return {label.decode(): text.decode(errors="replace") for label, text in _LABEL.findall(line)}


def engines_in(body: bytes) -> list[int]:
    """Return the numbers of the engines that a page is about."""
    prefix = _SERIES["running"].encode() + b"{"
    lines = [line for line in body.split(b"\n") if line.startswith(prefix)]
    return sorted(
        {int(found[1]) for line in lines if (found := _ENGINE.search(line[len(prefix) :]))}
    )


def _rank(page: _Page, rank: int) -> dict[str, _Number]:
    """Return a rank's series. Rank 0 is also what an assignment says of a server with one engine,
    and that engine may carry the number of its place among other servers.
    """
    if rank == 0 and len(page) == 1:
        return next(iter(page.values()))
    return page.get(rank, {})


def _load(
    series: dict[str, _Number], names: dict[str, tuple[str, ...]], engines: int, start: float | None
) -> Load:
    values: dict[str, _Number | None] = {}
    for field, known in names.items():
        value = next((series[name] for name in known if name in series), None)
        values[field] = value if value is None or value <= _MOST.get(field, value) else None
    config = {label: series.get(label) for label in ("block_size", "num_gpu_blocks")}
    missing = [_SERIES[field] for field, value in values.items() if value is None]
    missing += [_CONFIG] if None in config.values() else []
    asleep = series.get(_SLEEP)
    return Load(
        waiting=_whole(values["waiting"]),
        running=_whole(values["running"]),
        kv_cache_usage=values["kv_cache_usage"],
        prompt_tokens=_whole(values["prompt_tokens"]),
        generation_tokens=_whole(values["generation_tokens"]),
        prefix_cache_queries=_whole(values["prefix_cache_queries"]),
        prefix_cache_hits=_whole(values["prefix_cache_hits"]),
        preemptions=_whole(values["preemptions"]),
        block_size=_whole(config["block_size"]),
        # A server with several ranks gives their sum under each.
        num_gpu_blocks=_whole(config["num_gpu_blocks"], engines),
        # Not among the missing: a server with several API processes has none.
        process_start_s=start,
        prefills=_whole(values["prefills"]),
        asleep=None if asleep is None else asleep > 0,
        emptied=None if asleep is None else series[_GIVEN_BACK] > 0,
        missing=tuple(missing),
    )


def _whole(value: _Number | None, share: int = 1) -> int | None:
    return None if value is None else int(value) // share


# --- the fetching -----------------------------------------------------------------------------


async def watch(
    session: aiohttp.ClientSession,
    base_url: str,
    clock: Clock,
    take: Callable[[bytes | ScrapeFailed, float], bool],
    pauses: Pauses = USUAL,
) -> None:
    """Fetch a server's page until cancelled; `take` gets it and says whether the server is busy.

    The time handed over is when the page was asked for, so that an age is never understated.
    """
    while True:
        asked_at = clock.monotonic()
        busy = take(await fetch(session, base_url), asked_at)
        due = asked_at + (pauses.busy_s if busy else pauses.idle_s)
        await clock.sleep(max(due - clock.monotonic(), 0.05))


async def fetch(
    session: aiohttp.ClientSession,
    base_url: str,
    timeout_s: float = TIMEOUT_S,
    max_bytes: int = MAX_PAGE_BYTES,
) -> bytes | ScrapeFailed:
    """Return a server's page, or why there is none."""
    try:
        async with asyncio.timeout(timeout_s):
            async with session.get(
                f"{base_url}/metrics",
                headers={"Accept-Encoding": "identity"},  # compressing would cost the engine more
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S),
            ) as response:
                if response.status != 200:
                    return ScrapeFailed("status", f"/metrics answered {response.status}")
                page = bytearray()
                async for part in response.content.iter_any():
                    page += part
                    if len(page) > max_bytes:
                        return ScrapeFailed("size", f"/metrics is over {max_bytes} bytes")
                return bytes(page)
    except TimeoutError:
        return ScrapeFailed("timeout", "/metrics did not answer in time")
    except aiohttp.ClientConnectorError as error:
        why = os.strerror(code) if (code := error.os_error.errno or 0) > 0 else "no such host"
        return ScrapeFailed("connect", f"could not connect: {why}")
    except (aiohttp.ClientError, ValueError) as error:
        return ScrapeFailed("protocol", f"/metrics broke off: {type(error).__name__}")
