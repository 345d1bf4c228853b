"""What is served while an agent is silent or its stream lost: the table of docs/protocol.md."""

from agent.digest_log import DigestLog
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import LEASE_S, Phase, Position, Stream
from lineside import hashing
from lineside.ids import EngineId, Generation, Medium
from lineside.signals import Events, Load, Status
from tests.cells import GROUP, Cell

A, B = EngineId("e0"), EngineId("e1")
FIRST = Stream("life", 1)


class Followed:
    """Two engines; the first one's agent reports on it, until the test says otherwise."""

    def __init__(self) -> None:
        self.caches = Caches()
        self.cell = Cell(2, overlaps=self.caches)
        self.caches.assign({A: GROUP, B: GROUP})
        self.prompt = self.cell.text(640)
        self.keys = hashing.chain(hashing.seed(b"secret"), hashing.pack(self.prompt))
        keys = hashing.strided(self.keys, 4)
        self.log = DigestLog(A, 4)
        self.log.record(dict.fromkeys(keys, Medium.GPU))
        self.connect(FIRST)
        self.hear()

    def connect(self, stream: Stream) -> Position:
        """Do what ingest does when a stream comes."""
        self.stream = stream
        position = self.caches.connect(A, stream)
        assert position
        self.cell.cluster.link(A, True)
        self.cursor = self.log.resume(position.generation, position.digest_seq)
        self.note()
        return position

    def lose(self) -> None:
        self.caches.disconnect(A, self.stream, self.cell.clock.now)
        self.cell.cluster.link(A, False)

    def hear(self) -> None:
        """Take what the agent has to say, and its heartbeat."""
        while message := self.cursor.next():
            assert self.caches.apply(self.stream, message) is None
        status = Status(Events.LIVE, block_size=16)
        self.cell.cluster.observe_status(A, status, self.cell.clock.now)
        self.note()

    def note(self) -> None:
        feed = self.caches.feed(A)
        assert feed
        held = feed.visible
        self.cell.cluster.observe_digest(
            A,
            held.generation if held else "",
            live=held is not None,
            diverged=held is not None and not feed.current,
            heard_at=self.cell.clock.now,
        )

    async def pause(self, seconds: float) -> None:
        await self.cell.clock.advance(seconds)
        self.caches.expire(self.cell.clock.now)

    async def served(self) -> tuple[str, int]:
        """Return the engine's state, and the cached tokens that a decision counts on there."""
        record = await self.cell.dry_run(self.prompt)
        assert record.decision
        found = next(c for c in record.decision.ranked if c.target.id == A)
        assert found.reason or found.view.cache_state == "live"
        return found.view.cache_state, found.overlap_tokens


CACHED = 624
"""All blocks of the prompt but the last, whose last token is computed in any case."""


async def test_a_silent_agent_is_stale_then_lost_and_back_at_its_first_word() -> None:
    of = Followed()
    assert await of.served() == ("live", CACHED)
    await of.pause(2.0)
    assert await of.served() == ("live", CACHED)
    await of.pause(0.1)
    assert await of.served() == ("stale", CACHED)
    await of.pause(7.9)
    assert await of.served() == ("stale", CACHED)
    await of.pause(0.1)
    assert await of.served() == ("lost", 0)
    await of.pause(10 * LEASE_S)  # the stream is there: nothing is swept
    assert await of.served() == ("lost", 0)
    of.hear()
    assert await of.served() == ("live", CACHED)


async def test_a_lost_stream_is_kept_for_its_lease_then_swept() -> None:
    of = Followed()
    of.lose()
    assert await of.served() == ("live", CACHED)
    await of.pause(2.1)
    assert await of.served() == ("stale", CACHED)
    await of.pause(8.0)
    assert await of.served() == ("lost", 0)
    await of.pause(LEASE_S - 10.2)
    assert of.caches.overlap(GROUP, of.keys) != {}
    await of.pause(0.2)
    assert (await of.served(), of.caches.overlap(GROUP, of.keys)) == (("lost", 0), {})
    while of.caches.sweep_step():
        pass
    assert of.caches.size()[0] == 0


async def test_after_the_lease_the_engine_fills_again() -> None:
    of = Followed()
    of.lose()
    await of.pause(LEASE_S)
    assert of.connect(Stream("life", 2)).generation == ""
    assert await of.served() == ("filling", 0)
    of.hear()
    assert await of.served() == ("live", CACHED)


async def test_within_the_lease_a_stream_goes_on_where_it_was() -> None:
    of = Followed()
    of.lose()
    await of.pause(30.0)
    assert await of.served() == ("lost", 0)
    assert of.connect(Stream("life", 2)) == Position(of.log.generation, of.log.digest_seq)
    feed = of.caches.feed(A)
    assert feed
    assert (feed.phase, await of.served()) == (Phase.HELLO, ("unsure", CACHED))
    of.hear()
    assert (feed.snapshots, await of.served()) == (1, ("live", CACHED))


async def test_a_restarted_agent_is_unsure_until_its_snapshot_is_there() -> None:
    of = Followed()
    of.lose()
    of.log = DigestLog(A, 4, fresh=lambda: Generation("another"))
    of.connect(Stream("another life", 1))
    assert await of.served() == ("unsure", CACHED)
    of.hear()
    assert await of.served() == ("live", 0)  # its residency is empty, and so is ours


async def test_an_engine_nobody_reports_on_is_served_by_load() -> None:
    of = Followed()
    cluster, now = of.cell.cluster, of.cell.clock.now
    cluster.observe_status(A, Status(Events.UNUSABLE, "the block size is no multiple of 16"), now)
    assert await of.served() == ("unusable", 0)
    cluster.observe_status(A, Status(Events.UNSURE, "events were lost"), now)
    assert await of.served() == ("unsure", CACHED)


def test_an_engine_whose_publisher_is_not_heard_is_connecting_and_routed_by_load() -> None:
    """Its digest is whole, and says nothing: the agent may be listening to the wrong port."""
    followed = Followed()
    status = Status(Events.CONNECTING, "no word from the engine's event publisher yet")
    followed.cell.cluster.observe_status(A, status, followed.cell.clock.now)
    followed.cell.cluster.observe_load(A, Load(), followed.cell.clock.now)
    (view, _) = followed.cell.cluster.snapshot(followed.cell.clock.now).engines
    assert (view.cache_state, view.cache_usable, view.fresh) == ("connecting", False, False)
    assert view.reason == "no word from the engine's event publisher yet"
