"""From a body to block keys: rendering, encoding, hashing; large prompts at a rate; a dead engine.

    python bench/tokens.py [--tokenizers DIR] [--seconds S] [--json FILE]

Prints three tables; `bench/README.md` says what each row means. Seeds are fixed.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import tokenizers
import uvloop

from bench.decision import SECRET, Scene, make_scene
from bench.policy import MODELS
from coordinator.canonical import Api, Canonical, parse
from coordinator.engines import Engine, ServedModel
from coordinator.refusal import Draining
from coordinator.service import Routed
from coordinator.tokens.reuse import Reuse
from coordinator.tokens.sources import Tokens
from coordinator.tokens.tokenized import Tokenized
from coordinator.tokens.tokenizer import Tokenizer
from lineside import hashing
from lineside.clock import SystemClock
from lineside.ids import EngineId, GroupId, ModelName, NodeId, TenantId

SEED = 20262
CHAT_TOKENS = 32_768
CHATS = 8
CHAT_BUDGET_MS = 5.0
PROMPT_BYTES = 220_000
RATE = 50
P99_BUDGET_MS = 100.0
DEAD_BUDGET_MS = 60.0
DEAD_REQUESTS = 40
ALONE = 40
"""Large prompts one after another, with all the time they want."""
MODEL = MODELS[0]
"""What the scene's engines serve."""

TINY = Path(__file__).parents[1] / "simulate" / "model"


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat of about `CHAT_TOKENS`, milliseconds of CPU: other work on the machine is left out."""

    tokenizer: str
    turn: str
    tokens: int
    render: float
    encode: float
    whole: float
    """The same encoder without anything kept of earlier requests."""
    keys: float
    total: float
    peer_encode: float
    peer_reused: float
    """The peer as the product uses it for what the other encoder does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """Decisions at a rate, milliseconds."""

    what: str
    requests: int
    p50: float
    p99: float
    longest: float
    budget: float | None
    cpu: float
    """Of the process, all threads, for each request."""
    late: float
    """How late the loop ran at most."""
    states: dict[str, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizers", type=Path, metavar="DIR", default=".venv-oracle/tokenizers")
    parser.add_argument("--seconds", type=float, metavar="S", default=10.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    found = sorted(p.parent for p in options.tokenizers.glob("*/tokenizer.json")) or [TINY]
    chats = [row for folder in found for row in chat_rows(folder)]
    largest = next((folder for folder in found if folder.name == "qwen3"), found[0])
    rates = uvloop.run(rate_rows(largest, options.seconds))
    show(chats, rates)
    if options.json:
        options.json.write_text(json.dumps(report(chats, rates), indent=2) + "\n")
    return 0


# --- texts ----------------------------------------------------------------------------------------


class Corpus:
    """English and code: the sources of Python's own library, cut at random places."""

    def __init__(self, seed: int) -> None:
        files = sorted(Path(os.__file__).parent.glob("*.py"))[:90]
        self._text = "\n".join(file.read_text(errors="ignore") for file in files)
        self._rng = random.Random(seed)

    def cut(self, chars: int) -> str:
        start = self._rng.randrange(len(self._text) - chars)
        return self._text[start : start + chars]

    def chat(self, size: int) -> list[dict[str, str]]:
        """Return a chat of about `size` characters, none of which was seen before."""
        messages = [{"role": "system", "content": self.cut(600)}]
        while (left := size - sum(len(m["content"]) for m in messages)) > 0:
            role = "user" if len(messages) % 2 else "assistant"
            chars = min(left, self._rng.randrange(200, 3000))
            messages.append({"role": role, "content": f"{self._rng.random()} " + self.cut(chars)})
        return messages


def request(messages: Sequence[dict[str, str]]) -> Canonical:
    canonical = parse(Api.OPENAI_CHAT, {}, body(messages))
    assert isinstance(canonical, Canonical)
    return canonical


def body(messages: Sequence[dict[str, str]]) -> bytes:
    return json.dumps({"model": MODEL, "messages": messages}, ensure_ascii=False).encode()


# --- one chat -------------------------------------------------------------------------------------


def chat_rows(folder: Path) -> Iterator[ChatRow]:
    """Time each step for chats that were never seen, and for their next turns."""
    encoders = Encoders.load(folder)
    corpus = Corpus(SEED)
    chars = int(CHAT_TOKENS * chars_per_token(encoders.ours, corpus))
    chats = [corpus.chat(chars) for _ in range(CHATS)]
    yield timed(folder.name, "first", encoders, chats)
    further = [
        {"role": "assistant", "content": corpus.cut(900)},
        {"role": "user", "content": corpus.cut(300)},
    ]
    yield timed(folder.name, "next", encoders, [chat + further for chat in chats])


@dataclass(frozen=True)
class Encoders:
    """One tokenizer in four ways: ours and the peer's, with and without what is kept."""

    ours: Tokenizer
    whole: Tokenizer
    peer: Callable[[str], bytes]
    peer_reused: Reuse

    @classmethod
    def load(cls, folder: Path) -> "Encoders":
        ours, whole = Tokenizer.load(str(folder)), Tokenizer.load(str(folder))
        whole.reuse = None
        peer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        peer.no_truncation()
        peer.encode("a first text, as ours had one")
        encode = partial(encoded, peer)
        assert ours.reuse is not None, ours.no_reuse
        return cls(ours, whole, encode, Reuse(ours.reuse.mark, encode))


def chars_per_token(tokenizer: Tokenizer, corpus: Corpus) -> float:
    text = corpus.cut(50_000)
    asked = parse(Api.OPENAI_COMPLETIONS, {}, json.dumps({"model": "m", "prompt": text}).encode())
    assert isinstance(asked, Canonical)
    return len(text) / (len(tokenizer.tokens(asked)) // 4)


def timed(
    name: str,
    turn: str,
    encoders: Encoders,
    chats: Sequence[list[dict[str, str]]],
) -> ChatRow:
    seed, steps, counts = hashing.seed(SECRET), [], []
    for chat in chats:
        asked = request(chat)
        render, text = took(partial(encoders.ours.template.render, asked))
        both, packed = took(partial(encoders.ours.tokens, asked))
        unaided, again = took(partial(encoders.whole.tokens, asked))
        keys, _ = took(partial(hashing.chain, seed, packed))
        peers, theirs = took(partial(encoders.peer, text))
        reused, same = took(partial(encoders.peer_reused.encode, text))
        if not packed == again == theirs == same:
            raise SystemExit(f"{name}: the encoders differ")
        steps.append((render, both - render, unaided - render, keys, both + keys, peers, reused))
        counts.append(len(packed) // 4)
    medians = (statistics.median(each) for each in zip(*steps, strict=True))
    return ChatRow(name, turn, round(statistics.median(counts)), *medians)


def encoded(peer: tokenizers.Tokenizer, text: str) -> bytes:
    return hashing.pack(peer.encode(text, add_special_tokens=False).ids)


def took(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()  # all threads: never less than the wall time of a quiet machine
    result = call()
    return (time.process_time() - start) * 1e3, result


# --- at a rate ------------------------------------------------------------------------------------


@dataclass
class Real:
    """Tokens of real requests, for the engines of a scene that has no real ones."""

    tokens: Tokens
    engine: Engine

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        return await self.tokens.of(canonical, [self.engine])


async def rate_rows(folder: Path, seconds: float) -> list[RateRow]:
    """Time whole decisions, from the body's bytes: large prompts, and an engine that hangs."""
    corpus, scene = Corpus(SEED + 1), make_scene()
    large = [body(corpus.chat(PROMPT_BYTES)) for _ in range(int(RATE * seconds))]
    small = [body(corpus.chat(2_000)) for _ in range(DEAD_REQUESTS)]
    gc.collect()
    gc.freeze()
    hanging = await asyncio.start_server(never, "127.0.0.1", 0)
    port = hanging.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as http:
        calm, tokens = Tokens(SystemClock(), http, budget_s=60.0), Tokens(SystemClock(), http)
        for each in (calm, tokens):
            await each.load(str(folder))
        local = engine(f"127.0.0.1:{port}", str(folder))
        use(scene, Real(calm, local))
        what = f"{PROMPT_BYTES // 1000} kB prompts, one after another"
        alone = await rated(scene, what, [body(corpus.chat(PROMPT_BYTES)) for _ in range(ALONE)])
        use(scene, Real(tokens, local))
        what = f"{PROMPT_BYTES // 1000} kB prompts, {RATE} a second ({folder.name})"
        rows = [alone, await rated(scene, what, large, RATE, P99_BUDGET_MS)]
        use(scene, Real(tokens, engine(f"127.0.0.1:{port}", None)))
        what = "an engine that is asked and hangs"
        rows.append(await rated(scene, what, small, RATE, DEAD_BUDGET_MS))
        tokens.close()
        calm.close()
    hanging.close()
    return rows


def use(scene: Scene, tokens: Real) -> None:
    scene.service.decider.tokens = tokens


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what comes, until the other side gives up; answer nothing."""
    while await reader.read(65_536):
        pass
    writer.close()


def engine(endpoint: str, tokenizer: str | None) -> Engine:
    return Engine(
        id=EngineId(endpoint),
        base_url=f"http://{endpoint}",
        endpoint=endpoint,
        group=GroupId("g"),
        models=(ServedModel(ModelName(MODEL)),),
        node=NodeId("n"),
        tokenizer=tokenizer,
    )


async def rated(
    scene: Scene,
    what: str,
    bodies: Sequence[bytes],
    rate: float | None = None,
    budget: float | None = None,
) -> RateRow:
    """Send each body when it is due, earlier ones decided or not; without a rate, in turn."""
    times: list[float] = []
    states: Counter[str] = Counter()
    late, begun, cpu = 0.0, time.perf_counter(), time.process_time()

    async def decide(sent: bytes, due: float) -> None:
        asked = parse(Api.OPENAI_CHAT, {}, sent)
        assert isinstance(asked, Canonical)
        routed = await scene.service.route(asked, TenantId("t"), "request")
        times.append((time.perf_counter() - due) * 1e3)
        assert isinstance(routed, Routed)
        states[f"{routed.record.tokens}/{routed.record.tokens_reason}"] += 1
        scene.service.failed(routed, Draining())

    async with asyncio.TaskGroup() as tasks:
        for number, sent in enumerate(bodies):
            if rate is None:
                await decide(sent, time.perf_counter())
                continue
            due = begun + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            late = max(late, (time.perf_counter() - due) * 1e3)
            tasks.create_task(decide(sent, due))
    return RateRow(
        what=what,
        requests=len(times),
        p50=statistics.median(times),
        p99=statistics.quantiles(times, n=100, method="inclusive")[-1],
        longest=max(times),
        budget=budget,
        cpu=(time.process_time() - cpu) * 1e3 / len(times),
        late=late,
        states=dict(states),
    )


# --- paper ----------------------------------------------------------------------------------------


def show(chats: list[ChatRow], rates: list[RateRow]) -> None:
    print(f"a chat, ms of CPU (budget of the total: {CHAT_BUDGET_MS:g})")
    print(
        "tokenizer     turn   tokens  render  encode   whole   keys   total"
        "   HF whole  HF reused   HF whole / ours"
    )
    for row in chats:
        ratio = row.peer_encode / max(row.encode, 1e-3)
        print(
            f"{row.tokenizer:13} {row.turn:5} {row.tokens:7} {row.render:7.2f} {row.encode:7.2f}"
            f" {row.whole:7.2f} {row.keys:6.2f} {row.total:7.2f} {row.peer_encode:10.1f}"
            f" {row.peer_reused:10.1f} {ratio:17.1f}"
        )
    print("\ndecisions, ms from when a body was due")
    width = max(len(row.what) for row in rates)
    print(f"{'':{width}}  requests    p50     p99  longest  budget    CPU  loop late  tokens")
    for each in rates:
        states = ", ".join(f"{state} {count}" for state, count in sorted(each.states.items()))
        budget = each.budget or ""
        print(
            f"{each.what:{width}} {each.requests:9} {each.p50:6.1f} {each.p99:7.1f}"
            f" {each.longest:8.1f} {budget:>7} {each.cpu:6.2f} {each.late:10.1f}  {states}"
        )


def report(chats: list[ChatRow], rates: list[RateRow]) -> dict[str, Any]:
    return {
        "bench": "tokens",
        "seed": SEED,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "chats": [asdict(row) for row in chats],
        "rates": [asdict(row) for row in rates],
    }


if __name__ == "__main__":
    sys.exit(main())
