"""A captured engine with a window group, end to end but for sockets, against a slow reference.

After each message the coordinator's overlap of many prompts is what the window rule gives when it
is applied block by block to the hashes of the wire, which the reference reads by itself.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agent.assignment import AssignedEngine
from agent.engine import Counters, Worker
from agent.kv_events import decode
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import Stream
from lineside.hashing import UNIT, chain, pack, seed
from lineside.ids import EngineId, Generation, GroupId
from tests.captures import frames, ids, rows
from tests.manual_clock import ManualClock

SECRET = b"secret"
ENGINE, GROUP = EngineId("e"), GroupId("g")
STREAM = Stream("life", 1)
SIZE, WINDOW = 32, 64
FULL, SLIDING = 1, 0
"""The captured engine's groups."""

Tokens = tuple[int, ...]


class Reference:
    """What the wire says: which hashes each group has, and what they stand for."""

    def __init__(self) -> None:
        self._present: Counter[tuple[int, int]] = Counter()
        self._hashes: dict[Tokens, int] = {}
        self._prompts: dict[int, Tokens] = {}

    def hear(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            there = 1 if event["type"] == "BlockStored" else -1
            if there > 0 and event["kv_cache_spec_kind"] == "full_attention":
                self._name(event)
            for block_hash in event["block_hashes"]:
                self._present[event["group_idx"], block_hash] += there

    def _name(self, event: dict[str, Any]) -> None:
        prompt = self._prompts.get(event.get("parent_block_hash"), ())
        for at, block_hash in enumerate(event["block_hashes"]):
            prompt += tuple(event["token_ids"][at * SIZE : (at + 1) * SIZE])
            self._hashes[prompt], self._prompts[block_hash] = block_hash, prompt

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        """Return the tokens of the deepest block-aligned depth that every group can serve."""
        for depth in range((len(prompt) - 1) // SIZE, 0, -1):
            needed = range(max(0, depth - -(-(WINDOW - 1) // SIZE)), depth)
            if all(self._has(FULL, prompt, block) for block in range(depth)) and all(
                self._has(SLIDING, prompt, block) for block in needed
            ):
                return depth * SIZE
        return 0

    def _has(self, group: int, prompt: Sequence[int], block: int) -> bool:
        block_hash = self._hashes.get(tuple(prompt[: (block + 1) * SIZE]))
        return block_hash is not None and self._present[group, block_hash] > 0

    def decoded(self, prompt: Sequence[int]) -> Tokens:
        """Return the longest known prompt that begins like this one: its answer included."""
        return max(
            (known for known in self._hashes if known[: len(prompt)] == tuple(prompt)),
            key=len,
            default=(),
        )


class Path:
    """From an engine's messages to the coordinator's overlap."""

    def __init__(self) -> None:
        engine = AssignedEngine(ENGINE, "http://127.0.0.1:1")
        self.worker = Worker(engine, SECRET, Counters(), ManualClock(), lambda: None)
        self._caches = Caches()
        self._caches.assign({ENGINE: GROUP})
        self._caches.connect(ENGINE, STREAM)
        self._cursor = self.worker.log.resume(Generation(""), 0)

    def hear(self, message: list[bytes]) -> None:
        for event in decode(message).events:
            self.worker._holdings.apply(event)
        self.worker.flush()
        while said := self._cursor.next():
            assert self._caches.apply(STREAM, said) is None

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        keys = chain(seed(SECRET), pack(prompt))
        limit = (len(prompt) - 1) // UNIT
        return self._caches.overlap(GROUP, keys, limit).get(ENGINE, (0, 0, 0))[0] * UNIT


STEPS = [ids(10, 200), [*ids(10, 200), *ids(11, 40)], *(ids(100 + k, 320) for k in range(10))]
"""The prompts of the capture's steps that the client sent whole."""


def asked() -> list[Sequence[int]]:
    """Return the prompts, and their beginnings around each block's end, and longer ones."""
    cut = [
        prompt[: block * SIZE + more]
        for prompt in STEPS
        for block in range(1, len(prompt) // SIZE + 1)
        for more in (-1, 0, 1)
    ]
    return [*STEPS, *cut, *([*prompt, *ids(7, 100)] for prompt in STEPS)]


def test_the_overlap_after_each_message_is_what_the_window_rule_gives() -> None:
    path, reference, prompts = Path(), Reference(), asked()
    found: Counter[int] = Counter()
    for row in rows("hybrid_groups"):
        path.hear(frames(row))
        reference.hear(row["batch"][1])
        prompts_now = prompts
        if row["step"] == "decode_70":
            prompts_now = [*prompts, [*reference.decoded(ids(12, 31)), 1]]
        for prompt in prompts_now:
            expected = reference.cached_tokens(prompt)
            assert path.cached_tokens(prompt) == expected, (row["i"], len(prompt))
            found[expected] += 1
    assert sorted(found) == [0, 192, 224, 288]
    assert path.worker.log.hit_points


def test_the_overlap_is_what_the_captured_engine_then_used() -> None:
    """The second prompt's events begin where its hit ended: after six blocks."""
    path, messages = Path(), rows("hybrid_groups")
    path.hear(frames(messages[0]))
    assert path.cached_tokens(STEPS[0]) == path.cached_tokens(STEPS[1]) == 192
    stored = messages[1]["batch"][1][FULL]
    assert stored["parent_block_hash"] == messages[0]["batch"][1][FULL]["block_hashes"][5]


def test_an_ordinary_engines_digest_stays_as_it_was() -> None:
    path = Path()
    for row in rows("main")[:40]:
        path.hear(frames(row))
        assert (path.worker.log.hit_points, path.worker.log.stride) == (False, 4)
