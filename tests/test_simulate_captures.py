"""The simulated core on the requests of the recorded scenario: the same events, message by message.

Block hashes differ by design, so both sides' blocks are named by their content: all tokens from the
start of the prompt, and the extra keys. A hash that means two contents fails the test.

Two things are taken from the capture because they are not the scheduler's: what the model answered,
and when requests arrived relative to steps.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import simulate
from simulate.content import (
    AllBlocksCleared,
    BlockOffloaded,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Scope,
)
from simulate.core import Core, Limits, Request, Speeds
from simulate.tokens import Tokenizer
from tests.captures import ids, rows

MODEL = Path(simulate.__file__).parent / "model"
SIZE = 32
Named = tuple[Any, ...]


class Naming:
    """Events with blocks named by content instead of by hash."""

    def __init__(self) -> None:
        self._names: dict[Any, Named] = {None: ()}

    def stored(
        self, hashes: Sequence[Any], parent: Any, tokens: Sequence[int], extra: Sequence[Any]
    ) -> Named:
        name = self._names[parent]
        names = []
        for place, block_hash in enumerate(hashes):
            block = tuple(tokens[place * SIZE : (place + 1) * SIZE])
            name = (*name, (block, tuple(extra[place] or ())))
            assert self._names.setdefault(block_hash, name) == name
            names.append(name)
        return ("BlockStored", *names)

    def removed(self, block_hash: Any) -> Named:
        return ("BlockRemoved", self._names[block_hash])


def recorded() -> dict[str, list[list[dict[str, Any]]]]:
    steps: dict[str, list[list[dict[str, Any]]]] = {}
    for row in rows("main"):
        steps.setdefault(row["step"], []).append(row["batch"][1])
    return steps


def expected(messages: list[list[dict[str, Any]]], naming: Naming) -> list[list[Named]]:
    def named(event: dict[str, Any]) -> Named:
        match event["type"]:
            case "BlockStored":
                extra, parent = event["extra_keys"], event["parent_block_hash"]
                given = naming.stored(event["block_hashes"], parent, event["token_ids"], extra)
                return (*given, event.get("session_id"))
            case "BlockRemoved":
                return naming.removed(event["block_hashes"][0])
            case kind:
                return (kind,)

    return [[named(event) for event in message] for message in messages]


def simulated(messages: list[list[KvEvent]], naming: Naming) -> list[list[Named]]:
    def named(event: KvEvent) -> Named:
        match event:
            case BlockStored():
                extra, parent = event.extra_keys or [], event.parent
                given = naming.stored(event.block_hashes, parent, event.token_ids, extra)
                return (*given, event.session_id)
            case BlockRemoved(block_hash):
                return naming.removed(block_hash)
            case AllBlocksCleared():
                return ("AllBlocksCleared",)
            case BlockOffloaded():
                raise AssertionError("this engine has no CPU tier")

    return [[named(event) for event in message] for message in messages]


class Scenario:
    """The recorded scenario's requests, run on a core of the recorded server's size."""

    def __init__(self) -> None:
        self.core = Core(Limits(48, SIZE, 16, 1024), Speeds())
        self.steps = recorded()

    def run(self, now: Sequence[Request], later: Sequence[Request] = ()) -> list[list[KvEvent]]:
        """Run until idle; `later` arrives during the first step. Return the messages."""
        for request in now:
            self.core.add(request)
        messages, pending = [], list(later)
        while begun := self.core.begin():
            while pending:
                self.core.add(pending.pop(0))
            if events := self.core.finish(begun).events:
                messages.append(events)
        return messages

    def run_until(self, request: Request, tokens: int) -> list[list[KvEvent]]:
        self.core.add(request)
        messages = []
        while len(request.tokens) < tokens:
            begun = self.core.begin()
            assert begun is not None
            if events := self.core.finish(begun).events:
                messages.append(events)
        return messages

    def answer(self, step: str, prompt: Sequence[int], count: int) -> list[int]:
        """Follow the recorded chain from `prompt`; tokens of a last partial block are unknown."""
        children: dict[Any, list[tuple[int, Sequence[int]]]] = {}
        for message in self.steps[step]:
            for event in message:
                if event["type"] == "BlockStored":
                    parent = event["parent_block_hash"]
                    for place, block_hash in enumerate(event["block_hashes"]):
                        tokens = event["token_ids"][place * SIZE : (place + 1) * SIZE]
                        children.setdefault(parent, []).append((block_hash, tokens))
                        parent = block_hash
        text: list[int] = []
        parent = None
        while parent in children:
            known = list(prompt[len(text) : len(text) + SIZE])
            fits = [child for child in children[parent] if list(child[1][: len(known)]) == known]
            if not fits:
                break
            parent, tokens = fits[0]
            text += tokens
        answer = text[len(prompt) :][:count]
        return answer + [9] * (count - len(answer))


def one(prompt: Sequence[int], **options: Any) -> Request:
    return Request(prompt=list(prompt), answer=[5], **options)


def single_causes(scenario: Scenario) -> dict[str, list[list[KvEvent]]]:
    run, base = scenario.run, list(ids(10, 100))
    decode = "prompt_31_then_decode_70"
    answer = scenario.answer(decode, ids(12, 31), 70)
    return {
        "prompt_100_tokens": run([one(base)]),
        "same_prompt_again": run([one(base)]),
        "shared_prefix_64_then_64_other": run([one([*base[:64], *ids(11, 64)])]),
        decode: run([Request(prompt=ids(12, 31), answer=answer)]),
        "exactly_two_blocks_prompt": run([one(ids(13, 64))]),
        "exactly_two_blocks_prompt_again": run([one(ids(13, 64))]),
        **chat_turns(scenario),
        "cache_salt": run([one(ids(14, 96), scope=Scope(cache_salt="tenant-a"))]),
        "session_id_header": run([one(ids(15, 64), session_id="sess-1")]),
        "report_mode_full_on_hit": run([one(base, report_hits=True)]),
        "first_request_after_reset": run([one(ids(16, 64))]) if scenario.core.reset() else [],
    }


def chat_turns(scenario: Scenario) -> dict[str, list[list[KvEvent]]]:
    tokenizer = Tokenizer(MODEL)
    system = "You answer questions about the Python language. " * 6
    questions = (
        "What does the import statement do?",
        "And what is a generator?",
        "Explain async functions.",
    )
    messages = [{"role": "system", "content": system}]
    steps, cached = {}, []
    for turn, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.encode(tokenizer.render(messages))
        request = Request(prompt=prompt, answer=[201] * 24)  # what the model said: newlines
        steps[f"chat_turn_{turn}"] = scenario.run([request])
        messages.append({"role": "assistant", "content": "\n" * 24})
        cached.append((len(prompt), request.cached_tokens))
    assert cached == [(128, 0), (162, 96), (196, 160)]  # the usage that was recorded
    return steps


def load(scenario: Scenario) -> dict[str, list[list[KvEvent]]]:
    """Twelve long requests: the first one's first step had begun when the others came."""
    name = "load_with_preemption"
    prompts = [list(ids(200 + k, 96)) for k in range(12)]
    order = [
        next(prompt for prompt in prompts if prompt[:SIZE] == event["token_ids"][:SIZE])
        for message in scenario.steps[name][:2]
        for event in message
        if event["type"] == "BlockStored"
    ]

    def long(prompt: list[int]) -> Request:
        return Request(prompt=prompt, answer=scenario.answer(name, prompt, 400))

    return {name: scenario.run([long(order[0])], [long(prompt) for prompt in order[1:]])}


def reset_running(scenario: Scenario) -> dict[str, list[list[KvEvent]]]:
    """The reset came when 11 blocks were full, as the recomputation shows."""
    name, prompt = "reset_running_requests", list(ids(300, 96))
    answer = scenario.answer(name, prompt, 300)
    before = scenario.run_until(Request(prompt=prompt, answer=answer), 11 * SIZE + 2)
    assert scenario.core.reset(preempt_running=True)
    return {name: before + scenario.run([])}


@cache
def replayed() -> tuple[dict[str, list[list[Named]]], dict[str, list[list[Named]]]]:
    """Run the whole scenario; return the events by step as recorded and as simulated."""
    scenario = Scenario()
    mine = single_causes(scenario)
    two = "two_equal_requests_decoding"
    said = scenario.answer(two, ids(17, 33), 70)
    twins = [Request(prompt=ids(17, 33), answer=said) for _ in range(2)]
    mine[two] = scenario.run(twins[:1], twins[1:])
    fill = [scenario.run([one(ids(100 + k, 320))]) for k in range(8)]
    mine["fill_until_evicted"] = [message for messages in fill for message in messages]
    mine["touch_evicted_prefix_again"] = scenario.run([one(ids(100, 320))])
    mine |= load(scenario)
    totals = scenario.core.totals
    counted = (totals.preemptions, totals.prefix_queries, totals.prefix_hits)
    assert (*counted, totals.generated_tokens) == (19, 5395, 576, 5100)  # metrics/after_preemption
    mine |= reset_running(scenario)
    theirs, ours = Naming(), Naming()
    return (
        {name: expected(scenario.steps.get(name, []), theirs) for name in mine},
        {name: simulated(messages, ours) for name, messages in mine.items()},
    )


def test_every_recorded_step_is_replayed() -> None:
    assert {row["step"] for row in rows("main")} <= set(replayed()[1])


@pytest.mark.parametrize(
    "step",
    [
        "prompt_100_tokens",
        "same_prompt_again",
        "shared_prefix_64_then_64_other",
        "prompt_31_then_decode_70",
        "exactly_two_blocks_prompt",
        "exactly_two_blocks_prompt_again",
        "chat_turn_0",
        "chat_turn_1",
        "chat_turn_2",
        "cache_salt",
        "session_id_header",
        "report_mode_full_on_hit",
        "first_request_after_reset",
        "two_equal_requests_decoding",
        "fill_until_evicted",
        "touch_evicted_prefix_again",
        "load_with_preemption",
        "reset_running_requests",
    ],
)
def test_the_simulated_engine_sends_what_the_real_one_sent(step: str) -> None:
    theirs, ours = replayed()
    assert ours[step] == theirs[step]
