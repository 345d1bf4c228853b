"""Three hundred requests of every kind over two real engines, and again over two simulated ones.

What the index promises of each request is held against what its engine counts. `VLLM_REPORT` names
a file for the figures; they are printed as well.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.killable import Process, free_ports
from tests.vllm.asks import BOUND, chat
from tests.vllm.mix import Ask, Mix, Seen, table
from tests.vllm.model import ADAPTER, BLOCK, NAME
from tests.vllm.product import Answer, Product, product
from tests.vllm.servers import BLOCKS, Server
from tests.vllm.witness import Witness

pytestmark = pytest.mark.vllm

REQUESTS = int(os.environ.get("VLLM_REQUESTS", "300"))
LAG_S = 0.2
"""What left a cache this long before a decision may not be known to it."""


@dataclass
class Sent:
    """A request as it went out, and what came of it."""

    ask: Ask
    answer: Answer
    prompt: list[int]
    seen: Seen


async def test_every_prediction_is_within_a_stride_and_a_block(
    pair: tuple[Server, Server], model_folder: Path, tmp_path: Path
) -> None:
    rounds = await through_vllm(pair, tmp_path / "real")
    real = [sent.seen for of in rounds for sent in of]
    shown, told = table(real, BOUND)
    print(
        f"\ntwo vLLM engines\n{shown}\n{ {k: v for k, v in told.items() if k != 'distribution'} }"
    )
    names = {server.id: f"only-{server.name}" for server in pair}
    simulated = await through_simulation(rounds, names, model_folder, tmp_path / "simulated")
    differences = different(rounds, simulated)
    shown_again, told_again = table(simulated, BOUND)
    print(f"\nthe same through two simulated engines\n{shown_again}\n{len(differences)} differ")
    for line in differences:
        print("  ", line)
    write_report(told, told_again, differences, real)

    assert len(real) == REQUESTS
    quiet = [each for each in real if not each.evicted]
    assert [each for each in quiet if not within(each)] == []
    assert len(quiet) > 0.9 * REQUESTS
    assert [each for each in real if each.counted != each.prompt_tokens] == []
    assert told["by_engine"].keys() == {server.id for server in pair}
    assert told["with_hits"] > REQUESTS / 3
    assert [each for each in simulated if not within(each)] == []
    assert [line for line in differences if "(evicted)" not in line] == []


def within(seen: Seen) -> bool:
    """Say whether a prediction was right, as far as it can be."""
    return seen.beyond is not None and 0 <= seen.beyond < BOUND


async def through_vllm(pair: Sequence[Server], folder: Path) -> list[list[Sent]]:
    """Send the mixed run to real engines."""
    mix = Mix(seed=4)
    rounds = []
    for server in pair:
        server.empty()
    async with product(folder, *({"url": server.url} for server in pair)) as front:
        with contextlib.ExitStack() as watched:
            witnesses = {server.id: watched.enter_context(Witness.of(server)) for server in pair}
            await front.until_states("live", "live")
            await front.until_loaded(*chat())
            for asks in mix.rounds(REQUESTS):
                answers = await asyncio.gather(*(front.ask(a.path, a.body) for a in asks))
                for ask, answer in zip(asks, answers, strict=True):
                    assert answer.well, answer
                    await front.until_known(ask.path, ask.body, answer)
                of = []
                for ask, answer in zip(asks, answers, strict=True):
                    if ask.conversation is not None:
                        ask.conversation.answered(answer.text)
                    prompt = tokens_of(ask, pair[0])
                    told = seen(ask, answer, len(asks) == 1, prompt, witnesses[answer.engine])
                    of.append(Sent(ask, answer, prompt, told))
                rounds.append(of)
            removed = sum(len(witness.removals) for witness in witnesses.values())
            print(f"\n{removed} blocks left the two caches meanwhile")
            assert removed > REQUESTS, "too few evictions to show anything"
    return rounds


def tokens_of(ask: Ask, server: Server) -> list[int]:
    """Return a prompt's token ids, by an engine's own word."""
    prompt = ask.body.get("prompt")
    if isinstance(prompt, list):
        return prompt
    tokens: list[int] = server.post("/tokenize", ask.to_tokenize)["tokens"]
    return tokens


def seen(ask: Ask, answer: Answer, alone: bool, prompt: list[int], witness: Witness) -> Seen:
    """Return what came of a request, and what its engine evicted of its prompt."""
    record, outcome = answer.record, answer.record["outcome"]
    decided = record["at"]
    ended = decided + outcome["duration_s"]
    return Seen(
        kind=ask.kind,
        engine=answer.engine,
        alone=alone,
        predicted=answer.predicted,
        speculative=outcome["speculative_tokens"] or 0,
        reported=answer.reported,
        prompt_tokens=record["prompt_tokens"],
        counted=outcome["prompt_tokens"],
        tokens=f"{record['tokens']}: {record['tokens_reason']}",
        evicted=witness.evicted(prompt, ask.scope, decided - LAG_S, ended),
        lost=witness.evicted(prompt, ask.scope, 0, ended),
    )


async def through_simulation(
    rounds: list[list[Sent]], names: dict[str, str], model: Path, folder: Path
) -> list[Seen]:
    """Send the same requests again, each to the simulated twin of the engine that had it.

    Each twin also serves a name of its own, by which a request comes to it.
    """
    engines = {id: simulated(name, model, folder) for id, name in names.items()}
    found: list[Seen] = []
    try:
        await asyncio.gather(*(process.start() for process, _ in engines.values()))
        async with product(folder / "product", *(spec for _, spec in engines.values())) as front:
            await front.until_states("live", "live")
            await front.until_loaded(*chat(model=next(iter(names.values()))))
            with contextlib.ExitStack() as watched:
                witnesses = {
                    id: watched.enter_context(Witness((await front.engines())[twin]["events"]))
                    for (id, (_, spec)) in engines.items()
                    for twin in [spec["url"].removeprefix("http://")]
                }
                for of in rounds:
                    found += await again(front, of, names, witnesses)
    finally:
        await asyncio.gather(*(process.end() for process, _ in engines.values()))
    return found


async def again(
    front: Product, of: list[Sent], names: dict[str, str], witnesses: dict[str, Witness]
) -> list[Seen]:
    """Send a round to the twins of those that had it."""
    asks = [replace(e.ask, body=to(names[e.answer.engine], e.ask.body)) for e in of]
    answers = await asyncio.gather(*(front.ask(ask.path, ask.body) for ask in asks))
    for ask, answer in zip(asks, answers, strict=True):
        assert answer.well, answer
        await front.until_known(ask.path, ask.body, answer)
    return [
        seen(ask, answer, len(of) == 1, each.prompt, witnesses[each.answer.engine])
        for ask, answer, each in zip(asks, answers, of, strict=True)
    ]


def to(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a request for one engine alone."""
    adapted = {NAME: name, ADAPTER: f"{ADAPTER}-{name}"}
    return {**body, "model": adapted[body["model"]]}


def simulated(name: str, model: Path, folder: Path) -> tuple[Process, dict[str, Any]]:
    """Return a twin of a real engine, and how the coordinator is to know it."""
    folder.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    words = [
        *("simulate.main", "--port", str(port), "--model-folder", str(model)),
        *("--served-model-name", name, "--lora", f"{ADAPTER}-{name}"),
        *("--blocks", str(BLOCKS), "--block-size", str(BLOCK), "--max-model-len", "1024"),
        *("--max-num-seqs", "16", "--max-num-batched-tokens", "1024"),
        *("--base-step-s", "0.002"),
    ]
    process = Process(name, words, None, folder / f"{name}.log")
    return process, {"url": f"http://127.0.0.1:{port}", "tokenizer": str(model)}


def different(rounds: list[list[Sent]], simulated: list[Seen]) -> list[str]:
    """Return a line for each request of which the simulated engine led to another prediction."""
    lines = []
    real = [sent for of in rounds for sent in of]
    for number, (sent, twin) in enumerate(zip(real, simulated, strict=True)):
        if sent.seen.predicted == twin.predicted:
            continue
        # An answer's blocks differ, and after them what is the least recently used one.
        why = "evicted" if sent.seen.lost or twin.lost else "?"
        lines.append(
            f"{number} {sent.seen.kind}: {sent.seen.predicted} of {sent.seen.reported} there, "
            f"{twin.predicted} of {twin.reported} simulated ({why})"
        )
    return lines


def write_report(real: Any, simulated: Any, differences: list[str], requests: list[Seen]) -> None:
    """Write the figures where `VLLM_REPORT` says."""
    if path := os.environ.get("VLLM_REPORT"):
        figures = {
            "python": sys.version.split()[0],
            "vllm": real,
            "simulated": simulated,
            "different": differences,
            "each": [asdict(request) for request in requests],
        }
        Path(path).write_text(json.dumps(figures, indent=1) + "\n")
