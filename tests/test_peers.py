"""What coordinators have in flight, on its way from one to the others."""

import math
from collections import Counter
from random import Random

import pytest

from agent import wire as agent_wire
from agent.peers import Peers as Words
from agent.peers import Word as Kept
from agent.signals import Observed
from coordinator.agents import wire
from coordinator.agents.session import TELL_AGAIN_S, Session
from coordinator.holdings.feed import Stream
from coordinator.holdings.overlay import Overlay
from coordinator.load.inflight import InFlight as Leases
from coordinator.load.inflight import PeerSum
from coordinator.state.peers import SILENT_S, Own, Peers, Word
from lineside.digest import MAX_CLAIMED, MAX_REPORTS, DeltaReader, MalformedDigest
from lineside.ids import BlockKey, EngineId, GroupId, NodeId
from lineside.signals import Events, Gpu, InFlight, Load, NodeGpus, Status
from lineside.v1 import agents_pb2 as pb

A, B = EngineId("a"), EngineId("b")
N, M = NodeId("n"), NodeId("m")
BUSY = InFlight(outstanding=3, queued=2, queued_tokens=1000, wait_s=0.5)
HERE = frozenset((A, B))


def word(name: str, age_s: float | None = 0.0, **engines: InFlight) -> Word:
    return Word(name, {EngineId(engine): has for engine, has in engines.items()}, age_s)


def peers(*words: Word, at: float = 0.0) -> Peers:
    made = Peers()
    made.call_me("me")
    made.hear(N, words, HERE, at)
    return made


# --- in the agent ---------------------------------------------------------------------------------


def test_each_is_told_what_the_others_said_and_never_its_own_word() -> None:
    calls: list[None] = []
    words = Words(lambda: calls.append(None))
    words.enter("one")
    words.say("one", {A: BUSY}, 1.0)
    assert (words.others("one"), calls) == ({}, []), "alone, nobody is to be told"
    words.enter("two")
    assert words.others("two") == {"one": Kept({A: BUSY}, 1.0)}
    assert words.others("one") == {"two": Kept({}, None)}, "it hears that there is somebody to tell"
    words.say("two", {B: BUSY}, 2.0)
    assert words.others("one") == {"two": Kept({B: BUSY}, 2.0)}
    words.leave("two")
    words.leave("two")
    assert (words.others("one"), len(calls)) == ({}, 3)


def test_a_word_survives_both_wires() -> None:
    told = wire.in_flight({A: BUSY})
    heard = agent_wire.in_flight(told.in_flight)
    updates = agent_wire.Updates()
    updates.peers({"one": Kept(heard, 5.0), "old": Kept()}, 5.25)
    (message,) = updates.take()
    (said,) = wire.decode(pb.AgentMessage.FromString(message.SerializeToString()), DeltaReader())
    assert said == wire.Peers([word("one", 0.25, a=BUSY), word("old", None)])


@pytest.mark.parametrize("claimed", [b"12345678", b"x" * 7, b"x" * 8 * (MAX_CLAIMED + 1)])
def test_a_word_that_others_would_refuse_is_not_passed_on(claimed: bytes) -> None:
    """One coordinator of another mind must not end all the others' streams."""
    said = [pb.EngineInFlight(engine="a", outstanding=1, claimed=claimed)]
    heard = agent_wire.in_flight(pb.InFlight(engines=said))
    updates = agent_wire.Updates()
    updates.peers({"one": Kept(heard, 0.0)}, 0.0)
    (message,) = updates.take()
    (told,) = wire.decode(message, DeltaReader())
    assert isinstance(told, wire.Peers)
    kept = claimed if len(claimed) == 8 else b""
    assert told.words[0].engines[A] == InFlight(1, 0, 0, 0.0, kept)


def test_what_is_beyond_the_wire_is_cut_off() -> None:
    """An engine that has been away for 50 days, a queue of 50 days: neither ends a stream."""
    days = 50 * 86_400.0
    told = wire.in_flight({A: InFlight(1, 1, 1, days)})
    assert told.in_flight.engines[0].wait_ms == 2**32 - 1
    updates = agent_wire.Updates()
    updates.load(A, Observed(Load(), at=0.0, unix=0.0), days)
    updates.status(A, Observed(Status(Events.LIVE), at=0.0, unix=0.0), days)
    updates.gpus(Observed(NodeGpus(), at=0.0, unix=0.0), days)
    updates.peers({"one": Kept({A: InFlight(1, 1, 1, days)}, 0.0)}, days)
    (message,) = updates.take()
    heard = wire.decode(message, DeltaReader())
    reports = (wire.EngineStatus, wire.EngineLoad, wire.NodeGpu)
    ages = [each.age_s for each in heard if isinstance(each, reports)]
    assert ages == [(2**32 - 1) / 1000] * 3


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_was_not_measured(odd: float) -> None:
    gpu = pb.Gpu(uuid="g", utilization=odd, power_w=odd, temperature_c=40.0)
    load = pb.EngineLoad(engine="a", kv_cache_usage=odd, running=1, asleep=False)
    update = pb.Update(loads=[load], gpu=pb.NodeGpu(gpus=[gpu]))
    heard = wire.decode(pb.AgentMessage(update=update), DeltaReader())
    gpus = NodeGpus((Gpu(uuid="g", index=0, name="", engines=(), temperature_c=40.0),))
    assert heard == [
        wire.EngineLoad(A, Load(running=1, asleep=False), 0.0),
        wire.NodeGpu(gpus, 0.0),
    ]


def test_nobody_left_is_news() -> None:
    updates = agent_wire.Updates()
    updates.peers({}, 0.0)
    (message,) = updates.take()
    assert wire.decode(message, DeltaReader()) == [wire.Peers([])]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(pb.Peers(coordinators=[pb.InFlight()] * 65), id="too many coordinators"),
        pytest.param(
            pb.Peers(coordinators=[pb.InFlight(engines=[pb.EngineInFlight()] * (MAX_REPORTS + 1))]),
            id="too many engines",
        ),
    ],
)
def test_words_without_bounds_are_refused(said: pb.Peers) -> None:
    with pytest.raises(MalformedDigest, match="more coordinators, or engines"):
        wire.decode(pb.AgentMessage(update=pb.Update(peers=said)), DeltaReader())


def test_a_release_before_this_one_ignores_it() -> None:
    """What it knew by this number was another message of the same shape, which nobody sent."""
    update = pb.AgentMessage(update=pb.Update(peers=pb.Peers()))
    assert update.update.DESCRIPTOR.fields_by_name["peers"].number == 5
    told = pb.CoordinatorMessage(in_flight=pb.InFlight())
    assert told.DESCRIPTOR.fields_by_name["in_flight"].number == 6


# --- in the coordinator ---------------------------------------------------------------------------


def test_words_of_all_others_are_added_up() -> None:
    made = peers(word("one", a=BUSY), word("two", a=InFlight(1), b=BUSY))
    assert made.sums == {A: PeerSum(4, 1000, 2, 0.5), B: PeerSum(3, 1000, 2, 0.5)}
    assert (made.has(N), made.has(M)) == (True, False)


def test_our_own_word_never_comes_back() -> None:
    made = peers(word("me", a=BUSY))
    assert (made.sums, made.has(N), made.coordinators()) == ({}, False, frozenset())


def test_an_engine_that_moved_is_counted_once() -> None:
    made = peers(word("one", a=BUSY))
    made.hear(M, [word("one", a=BUSY, b=BUSY)], {B}, 0.0)
    assert made.sums == {A: PeerSum(3, 1000, 2, 0.5), B: PeerSum(3, 1000, 2, 0.5)}


def test_the_next_word_replaces_the_last() -> None:
    made = peers(word("one", a=BUSY), word("two", b=BUSY))
    made.hear(N, [word("one", b=InFlight(1))], HERE, 0.1)
    assert made.sums == {B: PeerSum(1, 0)}


def test_prefills_get_on_while_nothing_is_heard_but_are_never_credited_as_done() -> None:
    made = peers(word("one", 0.1, a=BUSY), at=1.0)
    assert made.sums[A].wait_s == pytest.approx(0.4)
    made.look(1.2)
    assert made.sums[A].wait_s == pytest.approx(0.2)
    made.look(2.0)
    assert made.sums[A].wait_s == pytest.approx(0.025)
    assert made.sums[A].outstanding == 3


def test_a_coordinator_that_is_silent_counts_for_nothing_and_is_shown() -> None:
    made = peers(word("one", 0.5, a=BUSY))
    made.look(SILENT_S - 0.5)
    assert A in made.sums
    made.look(SILENT_S - 0.4)
    assert made.sums == {}
    assert made.oldest_s(3.0) == 3.5
    assert made.shown(3.0) == [
        {
            "coordinator": "one",
            "engine": "a",
            "outstanding": 3,
            "queued": 2,
            "queued_tokens": 1000,
            "wait_s": 0.5,
            "claimed": 0,
            "age_s": 3.5,
            "counts": False,
        }
    ]


def test_words_go_with_the_stream_that_brought_them() -> None:
    made = peers(word("one", a=BUSY))
    made.leave(N, 0.0)
    assert (made.sums, made.has(N), made.oldest_s(1.0)) == ({}, False, None)


def test_one_that_has_said_nothing_is_there_and_has_no_age() -> None:
    made = peers(word("old", None))
    assert (made.has(N), made.oldest_s(9.0), made.sums) == (True, None, {})


def test_a_decision_reads_sums_as_they_become() -> None:
    made = peers()
    leases = Leases(made.sums)
    made.hear(N, [word("one", a=BUSY)], HERE, 0.0)
    assert leases.queue(A, 0.0).peers == PeerSum(3, 1000, 2, 0.5)
    made.leave(N, 0.0)
    assert leases.queue(A, 0.0).peers == PeerSum(0, 0)


# --- prompts that are on their way ----------------------------------------------------------------


def prompt(text: str) -> list[BlockKey]:
    """Return a prompt's keys as the overlay has them: each letter stands for 1,024 tokens."""
    letters = [text[:end] for end in range(1, len(text) + 1)]
    return [BlockKey(hash((each, n)) & 2**64 - 1) for each in letters for n in range(16)]


def told(overlay: Overlay) -> Peers:
    """Return what another coordinator knows of these claims, by both wires."""
    own = Own(Leases(), overlay)
    own.look()
    heard = agent_wire.in_flight(wire.in_flight(own.word([A, B], 0.0)).in_flight)
    return peers(Word("one", heard, 0.0))


def take(overlay: Overlay, engine: EngineId, text: str, at_end: bool = False) -> None:
    assert overlay.take(engine, GroupId("g"), prompt(text), 9.0, at_end)


def test_prompts_that_others_have_sent_count_as_deep_as_they_agree() -> None:
    overlay = Overlay()
    take(overlay, A, "abcd")
    take(overlay, A, "abx")
    take(overlay, B, "ab")
    made = told(overlay)
    assert made.units(prompt("abcde")) == {A: 4 * 64, B: 2 * 64}
    assert made.units(prompt("abx")) == {A: 3 * 64, B: 2 * 64}
    assert made.units(prompt("zb")) == {}
    assert made.units([]) == {}
    assert made.sums == {}, "a claim is no request"
    made.look(SILENT_S + 0.1)
    assert made.units(prompt("abcde")) == {}


def test_whatever_words_come_and_go_nothing_is_left_over() -> None:
    """Against a model that adds up all words anew each time."""
    rng, made, model = Random(7), peers(), dict[NodeId, dict[str, dict[EngineId, InFlight]]]()
    own = {N: (A,), M: (B,)}
    texts = ["a", "ab", "abc", "xy"]
    for step in range(400):
        node = rng.choice([N, M])
        words = {
            name: {
                engine: InFlight(rng.randrange(3), claimed=packed(rng.choice(texts)))
                for engine in own[node]
                if rng.random() < 0.7
            }
            for name in rng.sample(["one", "two", "three"], rng.randrange(4))
        }
        if step == 399 or rng.random() < 0.1:
            made.leave(node, 0.0)
            model.pop(node, None)
        else:
            said = [Word(name, engines, 0.0) for name, engines in words.items()]
            made.hear(node, said, own[node], 0.0)
            model[node] = words
        said_of = [each for words in model.values() for each in words.values()]
        sums = Counter[EngineId]()
        for engines in said_of:
            sums.update({engine: has.outstanding for engine, has in engines.items()})
        assert {engine: has.outstanding for engine, has in made.sums.items()} == +sums
        for text in texts:
            claimed = [(e, has.claimed) for each in said_of for e, has in each.items()]
            assert made.units(prompt(text)) == {
                engine: depth * 64
                for engine in (A, B)
                for depth in [max((common(text, c) for e, c in claimed if e == engine), default=0)]
                if depth
            }
    made.leave(N, 0.0)
    made.leave(M, 0.0)
    assert (made.sums, [made.units(prompt(text)) for text in texts]) == ({}, [{}] * 4)


def packed(text: str) -> bytes:
    """Return what is told of a claimed prompt."""
    return b"".join(key.to_bytes(8, "little") for key in prompt(text)[15::16])


def common(text: str, claimed: bytes) -> int:
    """Return how many letters a prompt shares with one that was claimed so."""
    return sum(packed(text[:end])[-8:] in claimed for end in range(1, len(text) + 1))


def test_claims_that_hold_at_their_end_alone_are_not_told() -> None:
    overlay = Overlay()
    take(overlay, A, "ab", at_end=True)
    assert told(overlay).units(prompt("ab")) == {}


def test_of_many_claims_the_common_beginnings_are_told() -> None:
    overlay = Overlay()
    for number in range(300):
        take(overlay, A, f"ab{chr(1000 + number)}")
    marks = overlay.marks(16, MAX_CLAIMED)
    assert len(marks[A]) == MAX_CLAIMED
    made = told(overlay)
    assert made.units(prompt("abz")) == {A: 2 * 64}
    known = [made.units(prompt(f"ab{chr(1000 + number)}"))[A] == 3 * 64 for number in range(300)]
    assert sum(known) == MAX_CLAIMED - 2


def test_marks_are_the_keys_at_these_depths() -> None:
    overlay = Overlay()
    keys = prompt("abc")
    for length in (5, 16, 17, 40, 48):
        assert overlay.take(A, GroupId("g"), keys[:length], 9.0)
    assert overlay.marks(16, MAX_CLAIMED) == {A: [keys[15], keys[31], keys[47]]}
    assert overlay.marks(16, 2) == {A: [keys[15], keys[31]]}


@pytest.mark.parametrize(
    "claimed", [pytest.param(b"x" * 9, id="half"), pytest.param(b"x" * 8 * 257, id="too many")]
)
def test_claimed_keys_without_bounds_are_refused(claimed: bytes) -> None:
    said = pb.Peers(coordinators=[pb.InFlight(engines=[pb.EngineInFlight(claimed=claimed)])])
    with pytest.raises(MalformedDigest, match="claimed keys"):
        wire.decode(pb.AgentMessage(update=pb.Update(peers=said)), DeltaReader())


# --- what is due on a stream ----------------------------------------------------------------------


def test_a_word_is_due_with_a_request_and_from_time_to_time() -> None:
    session = Session(N, Stream("life", 1))
    assert session.told_at == -math.inf

    def due(has: dict[EngineId, InFlight], now: float) -> list[pb.InFlight]:
        session.tell(has, now)
        return [message.in_flight for message in session.due(1)]

    def says(*engines: pb.EngineInFlight) -> list[pb.InFlight]:
        return [pb.InFlight(engines=engines)]

    assert due({}, 0.0) == says()
    assert due({}, 0.1) == []
    busy = pb.EngineInFlight(
        engine="a", outstanding=3, queued=2, queued_uncached_tokens=1000, wait_ms=500
    )
    assert due({A: BUSY}, 0.2) == says(busy)
    assert due({A: BUSY._replace(wait_s=0.4)}, 0.3) == [], "the others credit time themselves"
    assert due({A: BUSY}, 0.2 + TELL_AGAIN_S) == says(busy)
    assert due({}, 0.8) == says()


def test_of_a_stream_that_does_not_read_only_the_latest_word_is_kept() -> None:
    session = Session(N, Stream("life", 1))
    for outstanding in range(1, 100):
        session.tell({A: InFlight(outstanding)}, float(outstanding))
    (message,) = session.due(1)
    assert [engine.outstanding for engine in message.in_flight.engines] == [99]
    assert session.wake.is_set()
