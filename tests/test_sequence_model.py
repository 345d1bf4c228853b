"""What is said of an engine, against a plain dictionary of what the engine holds.

Random walks over everything between an engine and its digest: batches lost, doubled, out of order;
replays with holes, cut short, silent; replay buffers of five batches; engines that restart, agents
that restart with and without a checkpoint, connections that break. Whenever things settle, what is
said is part of what the engine holds; it is all of it unless the engine is called unsure; and an
unsure engine heals by being used.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from xxhash import xxh3_128_digest

from agent.checkpoint import Key, Saved, capture, decode, encode
from agent.holdings import Holdings
from agent.kv_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, KvEvent
from agent.sequence import Behind, Gap, Item, Message, Place, Restarted, Sequence, Whole
from lineside.hashing import chain, pack, seed
from lineside.ids import BlockKey, EngineId, Medium

SECRET = b"secret"
ENGINE = EngineId("e")
STRIDE = 1
SIZE = 16
ROUNDS = 60

Path: TypeAlias = tuple[int, ...]
"""A block, by the names of all blocks from the start of its prompt to it."""

names = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


def tokens(path: Path) -> list[int]:
    return [token for name in path for token in [name] * SIZE]


def stored(path: Path, start: int) -> BlockStored:
    run = [path[: end + 1] for end in range(start, len(path))]
    return BlockStored(
        keys=tuple(repr(block).encode() for block in run),
        parent=repr(path[:start]).encode() if start else None,
        packed=pack(tokens(path[start:])),
        block_size=SIZE,
        medium=Medium.GPU,
        group=0,
        full_attention=True,
        lora=None,
        salt=None,
        media=(),
        keyable=len(run),
    )


@dataclass
class Engine:
    """One life: its cache as a plain count of copies, its messages, and what it can replay."""

    life: int
    buffer_steps: int
    copies: Counter[Path] = field(default_factory=Counter)
    sent: list[Message] = field(default_factory=list)

    def publish(self, *events: KvEvent) -> Message:
        seq = len(self.sent)
        batch = Batch(seq, float(seq), 0, events, 0)
        mark = xxh3_128_digest(f"{self.life} {seq}".encode())
        self.sent.append(Message(seq, mark, batch))
        return self.sent[-1]

    def prompt(self, path: Path, *, full: bool) -> list[KvEvent]:
        """Compute what is not held from the start; `full` announces what was hit as well."""
        hit = next((n for n in range(len(path)) if not self.copies[path[: n + 1]]), len(path))
        events: list[KvEvent] = [stored(path[:hit], 0)] if full and hit else []
        for end in range(hit, len(path)):
            self.copies[path[: end + 1]] += 1
        return [*events, stored(path, hit)] if hit < len(path) else events

    def evict(self, path: Path) -> list[KvEvent]:
        if not self.copies[path]:
            return []
        self.copies[path] -= 1
        return [BlockRemoved((repr(path).encode(),), Medium.GPU, 0)]

    def again(self, path: Path) -> list[KvEvent]:
        """Store one more copy of a last block, as when its prompt fills it exactly."""
        if not all(self.copies[path[: n + 1]] for n in range(len(path))):
            return []
        self.copies[path] += 1
        return [stored(path, len(path) - 1)]

    def held(self) -> dict[BlockKey, Medium]:
        return {
            chain(seed(SECRET), pack(tokens(path)))[-1]: Medium.GPU
            for path, copies in self.copies.items()
            if copies and all(self.copies[path[: n + 1]] for n in range(len(path)))
        }


class Reading(RuleBasedStateMachine):
    """One engine, one connection, one agent."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = count(1)
        self.checkpoint = b""
        self.key = Key(ENGINE, SECRET, STRIDE)
        self.wire: list[Message] = []
        self.connected = False

    @initialize(buffer_steps=st.sampled_from([1, 5, 10_000]), replays=st.booleans())
    def begin(self, buffer_steps: int, replays: bool) -> None:
        self.replays = replays
        self.engine = Engine(next(self.lives), buffer_steps)
        self.start_agent(remember=False)

    # --- the engine -----------------------------------------------------------------------------

    @rule(path=names, what=st.sampled_from(["prompt", "prompt", "full", "evict", "again"]))
    def step(self, path: Path, what: str) -> None:
        match what:
            case "evict":
                events = self.engine.evict(path)
            case "again":
                events = self.engine.again(path)
            case _:
                # Coordinators ask for it only while the engine is unsure.
                events = self.engine.prompt(path, full=what == "full" and bool(self.holdings.lost))
        self.send(*events)

    @rule(paths=st.lists(names, min_size=1, max_size=4), arrive=st.booleans())
    def work(self, paths: list[Path], arrive: bool) -> None:
        """Serve prompts, some of them twice; at once heard, as it goes when little is wrong."""
        for path in paths:
            self.step(path, "full")
            self.step(path, "again")
        if arrive:
            self.settle()

    @rule(evictions=st.lists(st.integers(0, 9), min_size=1, max_size=6), arrive=st.booleans())
    def evict(self, evictions: list[int], arrive: bool) -> None:
        for at in evictions:
            held = sorted(path for path, copies in self.engine.copies.items() if copies)
            if held:
                self.step(held[at % len(held)], "evict")
        if arrive:
            self.settle()

    @rule(at=st.integers(0, 9))
    def lose_for_good(self, at: int) -> None:
        """Let the engine forget what is lost on the way."""
        if self.replays and len(self.wire) > 1:
            del self.wire[at % (len(self.wire) - 1)]
            steps, self.engine.buffer_steps = self.engine.buffer_steps, 1
            self.settle()
            self.engine.buffer_steps = steps

    @rule()
    def clear(self) -> None:
        self.engine.copies.clear()
        self.send(AllBlocksCleared())

    @rule(same_buffer=st.booleans())
    def restart_engine(self, same_buffer: bool) -> None:
        """Its connections break with it."""
        self.break_connection()
        self.engine = Engine(next(self.lives), self.engine.buffer_steps if same_buffer else 10_000)

    @rule()
    def reset_sequence(self) -> None:
        """Begin a new life on the same connection, which has nothing under way."""
        # Without replays an idle engine's cannot be told; and only numbers that fall give it away
        # at once where the engine's buffer had run over.
        if self.replays and not self.wire and self.sequence._live >= self.sequence._next - 1:
            self.engine = Engine(next(self.lives), self.engine.buffer_steps)

    def send(self, *events: KvEvent) -> None:
        if events:
            message = self.engine.publish(*events)
            if self.connected:
                self.wire.append(message)

    # --- the wire ---------------------------------------------------------------------------------

    @rule(at=st.integers(0, 9), what=st.sampled_from(["lose", "double", "swap"]))
    def garble(self, at: int, what: str) -> None:
        if not self.wire or not self.replays:
            return
        at %= len(self.wire)
        if what == "lose":
            del self.wire[at]
        elif what == "double":
            self.wire.insert(at, self.wire[at])
        elif at:
            self.wire[at - 1], self.wire[at] = self.wire[at], self.wire[at - 1]

    @rule(first=st.integers(0, 9), length=st.integers(1, 9))
    def lose(self, first: int, length: int) -> None:
        """Lose a run of messages; without replays only a later message can tell."""
        end = first + length if self.replays else min(first + length, len(self.wire) - 1)
        del self.wire[first : max(end, first)]

    @rule()
    def break_connection(self) -> None:
        self.wire.clear()
        self.connected = False
        self.take(self.sequence.disconnected())

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        self.connected = True
        self.take(self.sequence.connected())

    @precondition(lambda self: self.wire and self.sequence.asks is None)
    @rule(messages=st.integers(1, 9))
    def deliver(self, messages: int) -> None:
        for _ in range(messages):
            if not self.wire or self.sequence.asks is not None:
                return
            self.take(self.sequence.heard(self.wire.pop(0)))

    @rule(lost=st.sets(st.integers(0, 9), max_size=4), marked=st.booleans(), silent=st.booleans())
    def replay_badly(self, lost: set[int], marked: bool, silent: bool) -> None:
        self.replay({-1} if silent else lost, marked=marked and not silent, silent=silent)

    @rule()
    def replay_well(self) -> None:
        self.replay(set(), marked=True)

    def replay(self, lost: set[int], *, marked: bool, silent: bool = False) -> None:
        """Answer the request under way; some replies get lost, by their place."""
        if not self.connected or (first := self.sequence.asks) is None:
            return
        buffered = self.engine.sent[-self.engine.buffer_steps :]
        replies = [] if silent else [message for message in buffered if message.seq >= first]
        for at, message in enumerate(replies):
            if at not in lost:
                self.take(self.sequence.replied(message))
        self.take(self.sequence.ended(marked=marked))

    @rule()
    def check(self) -> None:
        self.sequence.check()

    # --- the agent --------------------------------------------------------------------------------

    @rule(remember=st.booleans())
    def start_agent(self, remember: bool) -> None:
        self.wire.clear()
        self.connected = False
        saved = decode(self.key, self.checkpoint) if remember and self.replays else ""
        if isinstance(saved, Saved):
            self.holdings = Holdings(ENGINE, SECRET, STRIDE, saved.residency, saved.lost)
            self.sequence = Sequence(self.replays, saved.place)
            self.blurred = self.saved_blurred
        else:
            self.holdings = Holdings(ENGINE, SECRET, STRIDE)
            self.sequence = Sequence(self.replays)
            self.blurred = False  # some block may have more copies than were counted
        self.whole = False
        self.place: Place | None = self.sequence.place

    @rule()
    def save(self) -> None:
        if self.place is None or self.holdings.unproven:
            return
        saved = Saved(self.holdings.residency, self.place, self.holdings.lost, None)
        captured = capture(saved)
        assert captured is not None
        self.checkpoint = encode(self.key, captured)
        self.saved_blurred = self.blurred

    @rule()
    def restart_agent(self) -> None:
        """Stop an agent in good order, and start the next from what it wrote."""
        self.settle()
        self.save()
        self.start_agent(remember=True)

    @rule()
    def vouch_for_an_old_generation(self) -> None:
        assert not self.holdings.healed(type(self.holdings.log.generation)("another"))

    def take(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Batch):
                for event in item.events:
                    self.watch(event)
                    self.holdings.apply(event)
                self.place = self.sequence.place
            else:
                self.holdings.mark(item)
                if isinstance(item, Restarted | Gap):
                    self.blurred = isinstance(item, Gap) and (item.lost or self.blurred)
                self.whole = isinstance(item, Whole) or (
                    self.whole and not isinstance(item, Behind)
                )
        self.holdings.flush()
        if self.connected and self.sequence.stale:  # as the subscriber does
            self.break_connection()

    def watch(self, event: KvEvent) -> None:
        """Note where a block has more copies than will be counted."""
        of = self.holdings.residency
        if isinstance(event, BlockStored) and of.at_least_one:
            blocks = [of._blocks.get(key) for key in event.keys]
            self.blurred = self.blurred or any(block and block.copies for block in blocks)
        elif isinstance(event, AllBlocksCleared):
            self.blurred = False

    @rule()
    def be_quiet(self) -> None:
        """Let everything arrive that was announced on demand."""
        self.settle()
        self.holdings.quiet()

    # --- what must hold ---------------------------------------------------------------------------

    def said(self) -> dict[BlockKey, Medium]:
        self.holdings.flush()
        return dict(self.holdings.log.held)

    @invariant()
    def nothing_unproven_is_said(self) -> None:
        if getattr(self, "holdings", None) and self.holdings.unproven:
            assert self.said() == {}

    @rule()
    def settle(self) -> None:
        """Let everything arrive, and hold what is said against what the engine holds."""
        for _ in range(ROUNDS + 2 * len(self.wire)):
            if not self.connected:
                self.connect()
            elif self.sequence.asks is not None:
                self.replay_well()
            elif self.wire:
                self.deliver(1)
            else:
                break
        self.sequence.check()
        for _ in range(ROUNDS):
            if not self.connected:
                self.connect()
            self.replay_well()
        assert self.connected
        assert self.sequence.asks is None
        assert not self.holdings.behind
        if self.replays:
            assert self.whole
        said, held = self.said(), self.engine.held()
        assert said.items() <= held.items()
        # Else a block of two copies may be taken for gone with the first.
        if self.replays and not self.blurred:
            assert not self.holdings.lost
            assert said == held
        assert self.sequence.place is None or not self.replays or self.is_current()

    def is_current(self) -> bool:
        place = self.sequence.place
        last = self.engine.sent[-1] if self.engine.sent else None
        return place is not None and last is not None and place == Place(last.seq, last.mark)

    @rule()
    def heal(self) -> None:
        """Use every block: what is hit is announced anew, and the engine is vouched for."""
        self.settle()
        if not self.holdings.lost:
            return
        for path in [path for path, copies in self.engine.copies.items() if copies]:
            self.send(*self.engine.prompt(path, full=True))
        self.settle()
        if self.holdings.lost:
            assert self.said() == self.engine.held()
            assert self.holdings.healed(self.holdings.log.generation)
        assert not self.holdings.lost

    def teardown(self) -> None:
        if hasattr(self, "holdings"):
            self.heal()
            self.settle()


Reading.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestReading: Any = Reading.TestCase
