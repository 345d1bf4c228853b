"""The simulated sliding-window group: held against the capture, and its rule for hits."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from simulate.content import KvEvent
from simulate.core import Core, Limits, Request, Speeds
from simulate.events import BatchEncoder
from tests.captures import ids, rows

SIZE = 32
WINDOW = 64

Message = list[dict[str, Any]]


def hybrid(blocks: int = 96, window: int = WINDOW) -> Core:
    return Core(Limits(blocks, SIZE, 16, 1024, sliding_window=window), Speeds())


def run(core: Core, prompt: Sequence[int], answer: Sequence[int] = (5,)) -> list[list[KvEvent]]:
    core.add(Request(prompt=list(prompt), answer=list(answer)))
    messages = []
    while begun := core.begin():
        if events := core.finish(begun).events:
            messages.append(events)
    return messages


def recorded() -> dict[str, list[Message]]:
    steps: dict[str, list[Message]] = {}
    for row in rows("hybrid_groups"):
        steps.setdefault(row["step"], []).append(row["batch"][1])
    return steps


class Naming:
    """Hashes replaced by the depth and the last block of what they stand for."""

    def __init__(self) -> None:
        self._names: dict[Any, tuple[int, tuple[int, ...]]] = {}

    def message(self, events: Message) -> Message:
        for event in events:  # the group that lists every block names them for the other one
            if event["type"] == "BlockStored" and event["group_idx"] == 1:
                self._learn(event)
        return [self._named(event) for event in events]

    def _learn(self, event: dict[str, Any]) -> None:
        parent = event["parent_block_hash"]
        depth = self._names[parent][0] if parent is not None else 0
        for place, block_hash in enumerate(event["block_hashes"]):
            tokens = tuple(event["token_ids"][place * SIZE : (place + 1) * SIZE])
            name = (depth + place + 1, tokens)
            assert self._names.setdefault(block_hash, name) == name

    def _named(self, event: dict[str, Any]) -> dict[str, Any]:
        named = {**event, "block_hashes": [self._names[h] for h in event["block_hashes"]]}
        if event.get("parent_block_hash") is not None:
            named["parent_block_hash"] = self._names[event["parent_block_hash"]]
        return named


def on_the_wire(messages: Sequence[Sequence[KvEvent]]) -> list[Message]:
    encoder = BatchEncoder()
    return [msgspec.msgpack.decode(encoder.encode(1.0, events))[1] for events in messages]


def decoded_answer(messages: Sequence[Message]) -> list[int]:
    """Return what the recorded model said after a prompt of 31 tokens."""
    text = [token for message in messages for token in message[1]["token_ids"]]
    answer = text[31:]
    return answer + [9] * (70 - len(answer))


def test_the_simulated_engine_sends_what_the_real_one_sent() -> None:
    core, steps = hybrid(), recorded()
    mine = {
        "prompt_200_tokens": run(core, ids(10, 200)),
        "same_again": run(core, ids(10, 200)),
        "extended": run(core, [*ids(10, 200), *ids(11, 40)]),
        "decode_70": run(core, ids(12, 31), decoded_answer(steps["decode_70"])),
        "fill": [m for k in range(10) for m in run(core, ids(100 + k, 320))],
    }
    theirs, ours = Naming(), Naming()
    for step, messages in mine.items():
        expected = [theirs.message(message) for message in steps.get(step, [])]
        assert [ours.message(message) for message in on_the_wire(messages)] == expected, step


def depth_of_hit(core: Core, prompt: Sequence[int]) -> int:
    one = Request(prompt=list(prompt), answer=[5])
    core.add(one)
    while begun := core.begin():
        core.finish(begun)
    assert one.cached_tokens is not None
    return one.cached_tokens // SIZE


def test_a_hit_needs_the_windows_blocks_before_it() -> None:
    core, prompt = hybrid(), list(ids(1, 10 * SIZE))
    assert depth_of_hit(core, prompt) == 0
    # Kept are blocks 8 and 9 alone: deep enough for the same prompt, and for nothing shorter.
    assert depth_of_hit(core, [*prompt, *ids(2, SIZE)]) == 9
    assert depth_of_hit(core, prompt[: 8 * SIZE]) == 0
    # That request kept blocks 6 and 7 in its turn.
    assert depth_of_hit(core, [*prompt[: 7 * SIZE], *ids(3, SIZE)]) == 7


@pytest.mark.parametrize(("window", "reach"), [(32, 1), (33, 1), (34, 2), (64, 2), (96, 3)])
def test_how_many_blocks_a_window_needs(window: int, reach: int) -> None:
    (events,) = run(hybrid(window=window), ids(1, 10 * SIZE))
    in_window, everywhere = on_the_wire([events])[0]
    assert len(in_window["block_hashes"]) == reach
    assert in_window["block_hashes"] == everywhere["block_hashes"][9 - reach : 9]


def test_a_long_request_gives_back_what_its_window_has_left() -> None:
    core = Core(Limits(96, SIZE, 16, 64, sliding_window=WINDOW), Speeds())
    core.add(Request(prompt=list(ids(1, 640)), answer=[5] * 100))
    used = []
    while begun := core.begin():
        used.append(core.cache.pool.in_use)
        core.finish(begun)
    assert max(used) == 24 + 3  # all of the one group, a window and a part of the other
    assert core.cache.pool.in_use == 0
    pool = core.cache.pool
    assert (len(pool.content(0)), len(pool.content(1))) == (2, 23)
