"""What can be seen between agent and coordinator by whoever listens in: TLS records, no content."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.config import AgentConfig, CoordinatorTls
from agent.dialling import Dialling
from agent.report import Reporter
from coordinator.agents.ingest import serving
from coordinator.config import Config
from coordinator.trust.agents import AgentTrust
from coordinator.trust.settings import AgentTls
from lineside.ids import BlockKey, Medium, NodeId
from tests.authority import Authority
from tests.streams import CLOCK, SECRET, TOKEN, A, Coordinator, FakeHub, engine
from tests.waiting import until

pytestmark = pytest.mark.flow

HANDSHAKE, APPLICATION = 22, 23
KINDS = {20, 21, HANDSHAKE, APPLICATION}
"""Content types of TLS: change of cipher, alert, handshake, application data."""

LONGEST = 2**14 + 256
NODE = NodeId("the-node-of-this-test")
LIFE = "the-life-of-this-test"
_RNG = random.Random(7)
KEYS = [BlockKey(_RNG.getrandbits(64)) for _ in range(3000)]


@dataclass
class Recorder:
    """Passes connections on to a server and keeps every byte."""

    port: int
    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            with suppress(OSError):
                await asyncio.gather(_pump(reader, out, self.up), _pump(there, writer, self.down))
        finally:  # the test may end before them
            writer.close()
            out.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    while part := await reader.read(65536):
        kept += part
        writer.write(part)
        await writer.drain()
    writer.write_eof()


@asynccontextmanager
async def recorder(address: str) -> AsyncIterator[tuple[Recorder, str]]:
    made = Recorder(int(address.rpartition(":")[2]))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    try:
        yield made, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def exchanged(trust: AgentTrust, dialling: Dialling) -> Recorder:
    """Run one agent with one engine that holds keys, and return all that went over the wire."""
    hub, coordinator = FakeHub(), Coordinator()
    coordinator.assign(replace(engine(A), node=NODE))
    await coordinator.numbering.follow()
    writer = asyncio.create_task(coordinator.servicer.run())
    async with (
        serving(coordinator.servicer, "127.0.0.1:0", trust.credentials()) as address,
        recorder(address) as (seen, through),
    ):
        reporter = Reporter(dialling.to(through), NODE, LIFE, hub, CLOCK)
        running = asyncio.create_task(reporter.run())
        await until(lambda: coordinator.view(A).cache_state == "live")
        hub.change(A, dict.fromkeys(KEYS, Medium.GPU))
        await until(lambda: reporter.acked.get(A) == (hub.logs[A].generation, 1))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    return seen


def secrets_of() -> dict[str, bytes]:
    return {
        "the node": NODE.encode(),
        "an engine": A.encode(),
        "the cluster's secret": SECRET,
        "a key": KEYS[1234].to_bytes(8, "little"),
        "the agent's life": LIFE.encode(),
    }


def seen_in_clear(wire: Recorder) -> set[str]:
    both = bytes(wire.up) + bytes(wire.down)
    return {name for name, content in secrets_of().items() if content in both}


def records(wire: bytes) -> Counter[int]:
    """Count TLS records by content type; every byte must be part of one."""
    found: Counter[int] = Counter()
    at = 0
    while at < len(wire):
        kind, major, minor = wire[at], wire[at + 1], wire[at + 2]
        length = int.from_bytes(wire[at + 3 : at + 5], "big")
        assert kind in KINDS, f"no record at byte {at}"
        assert (major, minor) in ((3, 1), (3, 3)) and length <= LONGEST
        if found[APPLICATION]:
            assert kind == APPLICATION  # from the first encrypted record on
        found[kind] += 1
        at += 5 + length
    return found


async def test_between_agent_and_coordinator_is_nothing_but_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("server")
    pair = authority.sign("agent", uris=[f"spiffe://lineside/node/{NODE}"])
    tls = AgentTls(server.cert, server.key, authority.file)
    ours = CoordinatorTls(authority.file, pair.cert, pair.key)
    wire = await exchanged(
        AgentTrust(Config(tls=tls), CLOCK),
        Dialling.of(AgentConfig(coordinators=("c:1",), tls=ours, token=TOKEN)),
    )
    assert seen_in_clear(wire) == set()
    for direction in (wire.up, wire.down):
        assert records(bytes(direction))[APPLICATION] > 3
    assert len(wire.up) > 8 * len(KEYS)  # the digest went that way


async def test_in_plaintext_all_of_it_can_be_read(tmp_path: Path) -> None:
    """So that the test above could fail."""
    wire = await exchanged(
        AgentTrust(Config(transport="plaintext"), CLOCK), Dialling.plaintext(TOKEN)
    )
    assert seen_in_clear(wire) == secrets_of().keys()
    with pytest.raises(AssertionError, match="no record at byte"):
        records(bytes(wire.up))


@pytest.mark.parametrize(
    ("hours", "agent", "coordinator"),
    [
        pytest.param((-9, -1), "has expired: renew it there", "the certificate ended on", id="old"),
        pytest.param((1, 24), "is not valid yet: compare the clocks", "ends on", id="early"),
        pytest.param((-1, 24 * 9), "", None, id="in order"),
    ],
)
async def test_both_sides_say_what_is_wrong_with_a_coordinator_s_certificate(
    hours: tuple[float, float], agent: str, coordinator: str | None, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, hours=(-1, 24 * 30))
    server = authority.sign("server", hours=hours)
    trust = AgentTrust(Config(tls=AgentTls(server.cert, server.key)), CLOCK)
    tls = CoordinatorTls(authority.file)
    dialling = Dialling.of(AgentConfig(coordinators=("c:1",), tls=tls))
    async with serving(Coordinator().servicer, "127.0.0.1:0", trust.credentials()) as address:
        why = await dialling.to(address).why()
    assert agent in why if agent else why == ""
    said = [text for code, text in trust.degraded() if code == "certificate_ending"]
    if coordinator is None:
        assert said == []
    else:
        assert coordinator in said[0]


async def test_an_agent_says_that_a_coordinator_speaks_no_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = CoordinatorTls(authority.file)
    dialling = Dialling.of(AgentConfig(coordinators=("c:1",), tls=tls))
    async with serving(Coordinator().servicer, "127.0.0.1:0") as address:
        assert "speaks no TLS: set `transport: plaintext`" in await dialling.to(address).why()
    assert await dialling.to(address).why() == ""  # nobody is there any more
