"""Streamed chats as a client sees them, sent when they are due, and what the engines counted.

Looks into a chunk only as far as it must to see whether it carries text: the client shares its
processors with what it measures.
"""

import asyncio
import json
import re
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from simulate.arrivals import Arrival

MODEL = "bench-model"
TOTAL_LIMIT_S = 60.0
"""A chat that has not finished by then has failed."""

_TEXT = re.compile(rb'"content": ?"(?!")')
_COUNTERS = {
    "vllm:prefix_cache_queries_total": "queried",
    "vllm:prefix_cache_hits_total": "hit",
    "vllm:request_success_total": "requests",
}


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to be a good one."""

    ttft_s: float
    itl_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Sample:
    """One chat. `error` is empty for one that was answered to its end."""

    ttft_s: float = 0.0
    itl_s: float = 0.0
    """Mean time between its tokens."""
    late_s: float = 0.0
    """How long after it was due it was sent: the client's own fault."""
    error: str = ""

    def faster(self, times: float) -> "Sample":
        """Return the same as if everything had been that many times faster."""
        return Sample(self.ttft_s / times, self.itl_s / times, self.late_s / times, self.error)

    def keeps(self, slo: Slo) -> bool:
        """Tell whether it was good."""
        return not self.error and self.ttft_s <= slo.ttft_s and self.itl_s <= slo.itl_s


async def chat(session: aiohttp.ClientSession, url: str, body: bytes, tokens: int) -> Sample:
    """Send a streamed chat whose answer has that many tokens; read it to its end."""
    sent = time.perf_counter()
    try:
        async with session.post(
            f"{url}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
        ) as answer:
            if answer.status != 200:
                return Sample(error=f"status {answer.status}")
            first = last = 0.0
            tail = b""
            async for chunk in answer.content.iter_any():
                if _TEXT.search(chunk):
                    last = time.perf_counter()
                    first = first or last
                tail = (tail + chunk)[-64:]
    except (aiohttp.ClientError, TimeoutError) as error:
        return Sample(error=type(error).__name__)
    if b"[DONE]" not in tail or not first:
        return Sample(error="no whole answer")
    return Sample(first - sent, (last - first) / max(1, tokens - 1))


def encoded(body: dict[str, Any]) -> bytes:
    """Return the body of a streamed chat."""
    return json.dumps({**body, "model": MODEL, "stream": True}).encode()


def client() -> aiohttp.ClientSession:
    """Return a session without bounds of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=TOTAL_LIMIT_S),
    )


Target = Callable[[], str]
"""Returns the URL for the next chat."""


async def send_all(
    session: aiohttp.ClientSession,
    arrivals: Sequence[Arrival],
    target: Target,
    counted_from_s: float,
    at_counting: Callable[[], Coroutine[None, None, None]],
) -> list[Sample]:
    """Send each chat when it is due; return the samples of those due from `counted_from_s` on."""
    bodies = [encoded(arrival.body()) for arrival in arrivals]
    begun = time.perf_counter()
    samples: list[Sample] = []

    async def one(arrival: Arrival, body: bytes) -> None:
        late_s = time.perf_counter() - begun - arrival.at_s
        sample = await chat(session, target(), body, arrival.answer_tokens)
        if arrival.at_s >= counted_from_s:
            samples.append(Sample(sample.ttft_s, sample.itl_s, late_s, sample.error))

    counting = False
    async with asyncio.TaskGroup() as tasks:
        for arrival, body in zip(arrivals, bodies, strict=True):
            await asyncio.sleep(max(0.0, begun + arrival.at_s - time.perf_counter()))
            if not counting and arrival.at_s >= counted_from_s:
                counting = True
                tasks.create_task(at_counting())
            tasks.create_task(one(arrival, body))
    return samples


# --- what the engines counted ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counts:
    """One engine's counters since its start."""

    queried: float = 0.0
    hit: float = 0.0
    requests: float = 0.0

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(
            self.queried - other.queried, self.hit - other.hit, self.requests - other.requests
        )


async def read_counts(session: aiohttp.ClientSession, engines: Sequence[str]) -> list[Counts]:
    """Read every engine's counters."""

    async def read(url: str) -> Counts:
        async with session.get(f"{url}/metrics") as answer:
            page = await answer.text()
        sums = dict.fromkeys(_COUNTERS.values(), 0.0)
        for line in page.splitlines():
            if (name := _COUNTERS.get(line.partition("{")[0])) is not None:
                sums[name] += float(line.rpartition(" ")[2])
        return Counts(**sums)

    return list(await asyncio.gather(*map(read, engines)))


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one contender."""

    requests: int
    failed: int
    mean_ttft_ms: float
    median_ttft_ms: float
    p95_ttft_ms: float
    mean_itl_ms: float
    goodput_per_s: float
    hit_rate: float
    busiest: float
    """Requests of the busiest engine over the mean."""
    client_cpu: float
    """Share of one processor."""
    late_ms: float
    """95th percentile of how late chats were sent."""
    machine_busy: float
    """Share of all processors' time that anything used, what else runs here included."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def figures(
    samples: Sequence[Sample],
    counts: Sequence[Counts],
    slo: Slo,
    seconds: float,
    cpu_s: float,
    machine_busy: float,
) -> Figures:
    """Return what a run of that many counted seconds comes to, with the client's CPU time."""
    answered = [sample for sample in samples if not sample.error]
    ttfts = [sample.ttft_s * 1e3 for sample in answered] or [0.0]
    requests = [count.requests for count in counts]
    return Figures(
        requests=len(samples),
        failed=len(samples) - len(answered),
        mean_ttft_ms=statistics.fmean(ttfts),
        median_ttft_ms=statistics.median(ttfts),
        p95_ttft_ms=quantile(ttfts, 0.95),
        mean_itl_ms=statistics.fmean(sample.itl_s * 1e3 for sample in answered or samples),
        goodput_per_s=sum(sample.keeps(slo) for sample in samples) / seconds,
        hit_rate=sum(c.hit for c in counts) / max(1.0, sum(c.queried for c in counts)),
        busiest=max(requests) / max(1.0, statistics.fmean(requests)),
        client_cpu=cpu_s / seconds,
        late_ms=quantile([sample.late_s * 1e3 for sample in samples], 0.95),
        machine_busy=machine_busy,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that this share of all does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0
