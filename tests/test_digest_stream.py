"""The digest stream as a whole, without sockets: random walks over agent, wires and coordinator.

The index never differs from the agent's truth while it looks current, and once nothing happens any
more it becomes current. The walk fails when fresh slots, the fencing of streams, new generations,
the mark of a diverged feed, the sweep before a slot is used again, or the flush before a snapshot
is taken out. Guards that checksums back up have tests of their own in tests/test_feed.py.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.digest_log import Cursor, DigestLog
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import LEASE_S, Feed, Holding, Position, Reason, Stream
from lineside.digest import Delta, SnapshotChunk
from lineside.ids import BlockKey, EngineId, Generation, GroupId, Medium

ENGINES = [EngineId("a"), EngineId("b")]
GROUP = GroupId("g")
KEYS = [BlockKey(number) for number in range(10)]
TOGGLED = BlockKey(99)
ROUNDS = 500

Held = dict[BlockKey, Medium]
Changes = dict[BlockKey, Medium | None]

engines = st.sampled_from(ENGINES)
keys = st.sampled_from(KEYS)
works = st.sampled_from(
    ["change"] * 2 + ["send"] * 3 + ["deliver"] * 3 + ["hear", "lose", "repeat", "corrupt"]
)
gpu = st.just(Medium.GPU)
media = st.sampled_from([1, 2, 3])
changes = st.dictionaries(keys, st.none() | st.sampled_from(Medium), max_size=6)


@dataclass
class Wire:
    """One stream, with what was sent into it and has not arrived."""

    stream: Stream
    cursors: dict[EngineId, Cursor] = field(default_factory=dict)
    up: deque[SnapshotChunk | Delta] = field(default_factory=deque)
    down: deque[tuple[EngineId, Position | Reason]] = field(default_factory=deque)


def content(holding: Holding) -> Held:
    """Return what the slots of a holding say; fail where a slower slot lacks a faster one's key."""
    held: Held = {}
    for key in [*KEYS, TOGGLED]:
        levels = [holding._index.holds(slot, key) for slot in holding.slots]
        assert levels == sorted(levels), "slots are cumulative"
        if any(levels):
            held[key] = Medium(levels.index(True))
    return held


class DigestStream(RuleBasedStateMachine):
    """One agent with two engines, one coordinator, and streams that die without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.generations = count(1)
        self.connections = count(1)
        self.lives = count(1)
        self.history: dict[tuple[EngineId, Generation, int], Held] = {}
        self.wires: list[Wire] = []
        self.agents_wire: Any = None  # Wire | None; preconditions see to it
        self.coordinators_wire: Wire | None = None
        self.start_agent()
        self.start_coordinator()

    @initialize()
    def begin(self) -> None:
        self.settle()

    # --- the agent -----------------------------------------------------------------------------

    def start_agent(self) -> None:
        self.life = f"life-{next(self.lives)}"
        self.agents_wire = None
        self.logs = {engine: self.new_log(engine) for engine in ENGINES}
        self.remember()

    def new_log(self, engine: EngineId) -> DigestLog:
        return DigestLog(
            engine,
            stride=1,
            ring_keys=8,
            ring_deltas=6,
            delta_keys=5,
            chunk_keys=2,
            fresh=lambda: Generation(f"generation-{next(self.generations)}"),
        )

    def remember(self) -> None:
        """Keep what each engine held at each number; a number must never mean two things."""
        for engine, log in self.logs.items():
            if not log._before:
                at = (engine, log.generation, log.digest_seq)
                assert self.history.setdefault(at, dict(log.held)) == log.held

    @rule(engine=engines, changes=changes, flush=st.booleans())
    def change_truth(self, engine: EngineId, changes: Changes, flush: bool) -> None:
        log = self.logs[engine]
        slowest = Medium(log.media - 1)
        log.record({k: m if m is None else min(m, slowest) for k, m in changes.items()})
        if flush:
            log.flush()
        self.remember()

    @rule(engine=engines, held=st.dictionaries(keys, gpu), media=media, hit_points=st.booleans())
    def start_generation(self, engine: EngineId, held: Held, media: int, hit_points: bool) -> None:
        """The engine restarted, lost an event for good, uses another medium or other groups."""
        self.logs[engine].restart(media, held, hit_points=hit_points)
        self.remember()

    @precondition(lambda self: self.agents_wire)
    @rule(steps=st.lists(st.tuples(works, engines, changes), min_size=1, max_size=12))
    def work(self, steps: list[tuple[str, EngineId, Changes]]) -> None:
        """Change, send, hear and deliver, as it goes when little is wrong."""
        up, down = self.agents_wire.up, self.agents_wire.down
        for step, engine, changes in steps:
            match step:
                case "change":
                    self.change_truth(engine, changes, flush=True)
                case "send":
                    self.send(engine)
                case "hear" if down:
                    self.hear()
                case "deliver" if up:
                    self.deliver_from(self.agents_wire)
                case "lose" | "repeat" | "corrupt" if up:
                    self.garble(step, len(changes) % len(up))

    def hear(self) -> None:
        engine, word = self.agents_wire.down.popleft()
        if isinstance(word, Position):
            cursor = self.logs[engine].resume(word.generation, word.digest_seq)
            self.agents_wire.cursors[engine] = cursor
        else:
            self.agents_wire.cursors[engine].resync()

    def send(self, engine: EngineId) -> bool:
        cursor = self.agents_wire.cursors.get(engine)
        message = cursor.next() if cursor else None
        self.remember()
        if message:
            self.agents_wire.up.append(message)
        return message is not None

    # --- the wires -----------------------------------------------------------------------------

    @rule()
    def connect(self) -> None:
        """Open a new stream; the old one's messages may still arrive."""
        wire = Wire(Stream(self.life, next(self.connections)))
        assert not self.coordinators_wire or wire.stream.replaces(self.coordinators_wire.stream)
        self.wires.append(wire)
        self.agents_wire = self.coordinators_wire = wire
        for engine in ENGINES:
            self.resume(wire, engine)

    def resume(self, wire: Wire, engine: EngineId) -> None:
        position = self.caches.connect(engine, wire.stream)
        assert position
        wire.down.append((engine, position))

    @precondition(lambda self: self.agents_wire and self.agents_wire.up)
    @rule(messages=st.integers(1, 6))
    def deliver(self, messages: int) -> None:
        for _ in range(min(messages, len(self.agents_wire.up))):
            self.deliver_from(self.agents_wire)

    @precondition(lambda self: self.late_wires())
    @rule(data=st.data(), messages=st.integers(1, 3))
    def deliver_late(self, data: st.DataObject, messages: int) -> None:
        """Deliver from a stream that the agent gave up; the coordinator may not know yet."""
        wire = data.draw(st.sampled_from(self.late_wires()))
        for _ in range(min(messages, len(wire.up))):
            self.deliver_from(wire)

    def late_wires(self) -> list[Wire]:
        return [wire for wire in self.wires if wire.up and wire is not self.agents_wire]

    def deliver_from(self, wire: Wire) -> None:
        message = wire.up.popleft()
        if reason := self.caches.apply(wire.stream, message):
            wire.down.append((message.engine, reason))

    def garble(self, what: str, place: int) -> None:
        """Do what no correct agent and transport do.

        A snapshot that was asked for and whose first chunk is lost is not asked for again.
        """
        up = self.agents_wire.up
        message = up[place]
        if what == "repeat":
            up.insert(place, message)
        elif what == "lose":
            if isinstance(message, Delta) or message.chunk > 0:
                del up[place]
        elif isinstance(message, Delta):
            both = [(TOGGLED, Medium.GPU)]  # added and removed: count and checksum stay right
            up[place] = replace(
                message, added=[*message.added, *both], removed=[*message.removed, *both]
            )

    # --- the coordinator -----------------------------------------------------------------------

    def start_coordinator(self) -> None:
        self.caches = Caches()
        self.caches.assign(dict.fromkeys(ENGINES, GROUP))
        self.wires = []
        self.agents_wire = self.coordinators_wire = None

    @rule(steps=st.sampled_from([1, 40, 256, 600]))
    def sweep(self, steps: int) -> None:
        while steps and self.caches.sweep_step():
            steps -= 1

    # --- what goes wrong -----------------------------------------------------------------------

    @rule(
        engine=engines,
        what=st.sampled_from(["stream", "wait", "agent", "coordinator", "assignment"]),
    )
    def disturb(self, engine: EngineId, what: str) -> None:
        match what:
            case "stream":
                self.lose_stream()
            case "wait":
                self.now += LEASE_S
                self.caches.expire(self.now)
            case "agent":
                self.start_agent()
            case "coordinator":
                self.start_coordinator()
            case "assignment":
                self.remove_and_assign_again(engine)

    def lose_stream(self) -> None:
        """The coordinator learns that its stream is gone; what is under way comes late or never."""
        if self.coordinators_wire is None:
            return
        for engine in ENGINES:
            self.caches.disconnect(engine, self.coordinators_wire.stream, self.now)
        if self.agents_wire is self.coordinators_wire:
            self.agents_wire = None
        self.coordinators_wire = None

    def remove_and_assign_again(self, engine: EngineId) -> None:
        self.caches.assign({other: GROUP for other in ENGINES if other != engine})
        self.caches.assign(dict.fromkeys(ENGINES, GROUP))
        if self.coordinators_wire:
            self.resume(self.coordinators_wire, engine)

    # --- what must hold ------------------------------------------------------------------------

    def feeds(self) -> Iterator[tuple[EngineId, Feed]]:
        for engine in ENGINES:
            feed = self.caches.feed(engine)
            assert feed
            yield engine, feed

    @invariant()
    def what_looks_current_is_true(self) -> None:
        for engine, feed in self.feeds():
            if feed.current:
                assert feed.visible
                at = (engine, feed.visible.generation, feed.visible.digest_seq)
                assert content(feed.visible) == self.history[at]

    @invariant()
    def overlap_says_what_the_visible_slots_hold(self) -> None:
        visible = {engine: content(f.visible) for engine, f in self.feeds() if f.visible}
        for key in KEYS:
            found = self.caches.overlap(GROUP, [key])
            assert found == {
                engine: (int(held[key] <= 0), int(held[key] <= 1), 1)
                for engine, held in visible.items()
                if key in held
            }

    @rule()
    def settle(self) -> None:
        """Let everything arrive, late words last; then each feed is current and true."""
        if self.agents_wire is None or self.agents_wire is not self.coordinators_wire:
            self.connect()
        self.exchange()
        for log in self.logs.values():  # a lost message shows at the next one
            log.record({TOGGLED: None if TOGGLED in log.held else Medium.GPU})
            log.flush()
        self.remember()
        self.exchange()
        for wire in self.late_wires():
            while wire.up:
                self.deliver_from(wire)
        self.exchange()
        for engine, feed in self.feeds():
            log = self.logs[engine]
            assert feed.current
            assert feed.visible
            assert feed.visible.generation == log.generation
            assert content(feed.visible) == log.held

    def exchange(self) -> None:
        """Carry messages both ways until there are none."""
        for _ in range(ROUNDS):
            quiet = not self.agents_wire.down and not self.agents_wire.up
            while self.agents_wire.down:
                self.hear()
            for engine in ENGINES:
                while self.send(engine):
                    quiet = False
            while self.agents_wire.up:
                self.deliver_from(self.agents_wire)
            if quiet:
                return
        raise AssertionError("agent and coordinator never come to rest")

    def teardown(self) -> None:
        self.settle()


DigestStream.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDigestStream = DigestStream.TestCase
