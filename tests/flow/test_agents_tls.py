"""Agents that connect in TLS: who is let in, who is not, and what both sides say of it."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.config import AgentConfig, CoordinatorTls
from agent.dialling import Dialling
from agent.report import Reporter
from coordinator.trust.handshakes import CAUSES, NAME, OURS, PLAINTEXT, Cause
from lineside.ids import NodeId
from tests import processes
from tests.authority import Authority, Pair
from tests.streams import CLOCK, FakeHub
from tests.waiting import until

pytestmark = pytest.mark.flow

NODE = "gpu-1"


def for_node(node: str) -> list[str]:
    return [f"spiffe://lineside/node/{node}"]


@dataclass
class Coordinator:
    """A process that asks agents for certificates."""

    authority: Authority
    server: Pair
    grpc: str
    admin: str
    said: list[dict[str, Any]]
    """Lines of its log."""
    session: aiohttp.ClientSession

    async def page(self, path: str) -> Any:
        async with self.session.get(f"http://{self.admin}{path}") as answer:
            return await answer.text() if path == "/metrics" else await answer.json()

    def reasons(self) -> set[str]:
        return {line["reason"] for line in self.said if line["event"] == "agent refused"}


@asynccontextmanager
async def coordinator(folder: Path, **settings: Any) -> AsyncIterator[Coordinator]:
    authority = Authority(folder)
    server = authority.sign("server", dns=["lineside-agents.svc"])
    config = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0") | {
        "tls": {
            "cert_file": server.cert,
            "key_file": server.key,
            "client_ca_file": authority.file,
        },
        **settings,
    }
    process = await processes.running("coordinator.main", config)
    assert process.stdout and process.stderr
    said: list[dict[str, Any]] = []

    async def listen(errors: asyncio.StreamReader) -> None:
        async for line in errors:
            said.extend([json.loads(line)])  # gRPC's own lines are none of them

    async with asyncio.timeout(25), aiohttp.ClientSession() as session:
        listening = asyncio.create_task(listen(process.stderr))
        try:
            where = json.loads(await process.stdout.readline())["listening"]
            yield Coordinator(authority, server, where["grpc"], where["admin"], said, session)
        finally:
            if process.returncode is None:
                process.terminate()
            if sys.exc_info()[0] is None:
                assert await process.wait() == 0
            await listening


@asynccontextmanager
async def agent(dialling: Dialling, address: str, node: str = NODE) -> AsyncIterator[Reporter]:
    reporter = Reporter(dialling.to(address), NodeId(node), "life", FakeHub(), CLOCK)
    running = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def shows(ca: str, pair: Pair | None, server_name: str | None = None) -> Dialling:
    """Return how an agent connects that trusts an authority and shows a certificate."""
    tls = CoordinatorTls(ca, pair and pair.cert, pair and pair.key, server_name)
    return Dialling.of(AgentConfig(coordinators=("c:1",), tls=tls))


def said_there(running: Coordinator, cause: Cause) -> bool:
    return cause.text in running.reasons()


def beside(authority: Authority, other: Authority) -> str:
    """Add another authority to the first one's file."""
    both = Path(authority.file).read_bytes() + Path(other.file).read_bytes()
    Path(authority.file).write_bytes(both)
    return authority.file


def broken(pair: Pair) -> None:
    Path(pair.cert).write_text("no certificate")


def words(caplog: pytest.LogCaptureFixture, address: str) -> Iterator[tuple[str, str]]:
    for record in caplog.records:
        fields = getattr(record, "fields", {})
        if fields.get("coordinator") == address:
            yield record.getMessage(), fields["reason"]


REFUSED = {
    "expired": "this agent's own certificate (`tls.cert_file`) has expired, on",
    "not_yet_valid": "this agent's own certificate (`tls.cert_file`) is not valid before",
    "foreign": "does not accept this agent's certificate, signed by `stranger`: add that authority",
    "missing": "the coordinator asks for a certificate: set `tls.cert_file`",
}
"""What the agent says, by the coordinator's name of the cause."""


async def test_wrong_certificates_are_refused_with_words_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with coordinator(tmp_path) as running, AsyncExitStack() as stack:
        authority, uris = running.authority, for_node(NODE)
        pairs = (
            authority.sign("expired", uris=uris, hours=(-9, -1)),
            authority.sign("early", uris=uris, hours=(1, 9)),
            Authority(tmp_path, "stranger").sign("foreign", uris=uris),
            None,
        )
        agents = [
            await stack.enter_async_context(agent(shows(authority.file, pair), running.grpc))
            for pair in pairs
        ]
        await until(lambda: len(running.reasons()) == 4)
        assert not any(each.connected for each in agents)
        told = set(words(caplog, running.grpc))
        assert {event for event, _ in told} == {"no trust"}
        for text in REFUSED.values():
            assert len([reason for _, reason in told if text in reason]) == 1, told
        texts = {cause.text for cause in CAUSES if cause.name in REFUSED}
        assert running.reasons() == texts
        degraded = (await running.page("/readyz"))["degraded"]
        assert {f"an agent was refused: {text}" for text in texts} <= set(degraded)
        metrics = await running.page("/metrics")
        for cause in REFUSED:
            assert f'handshakes_failed_total{{cause="{cause}"}} 0.0' not in metrics
            assert f'handshakes_failed_total{{cause="{cause}"}} ' in metrics


async def test_an_agent_trusts_nobody_but_a_coordinator_of_its_authority_and_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with coordinator(tmp_path) as running, AsyncExitStack() as stack:
        ca, pair = running.authority.file, running.authority.sign("agent", uris=for_node(NODE))
        wrong = {
            "none of the authorities in `tls.ca_file`": shows(
                Authority(tmp_path, "stranger").file, pair
            ),
            "is not for `other.svc`": shows(ca, pair, "other.svc"),
            "the coordinator asks for TLS: set `transport: tls`": Dialling.plaintext(),
        }
        agents = [
            await stack.enter_async_context(agent(dialling, running.grpc))
            for dialling in wrong.values()
        ]
        await until(lambda: len(set(words(caplog, running.grpc))) == len(wrong))
        told = set(words(caplog, running.grpc))
        assert {event for event, _ in told} == {"no trust"}
        for text in wrong:
            assert len([reason for _, reason in told if text in reason]) == 1, told
        for cause in (OURS, NAME, PLAINTEXT):
            await until(partial(said_there, running, cause))
        assert not any(each.connected for each in agents)
        it = await stack.enter_async_context(
            agent(shows(ca, pair, "lineside-agents.svc"), running.grpc)
        )
        await until(lambda: it.connected)


async def test_a_node_speaks_for_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with coordinator(tmp_path) as running:
        ca = running.authority.file
        of_uri = running.authority.sign("a", uris=for_node(NODE))
        of_dns = running.authority.sign("b", dns=["gpu-2"])
        async with AsyncExitStack() as stack:
            by_uri = await stack.enter_async_context(agent(shows(ca, of_uri), running.grpc))
            by_dns = await stack.enter_async_context(
                agent(shows(ca, of_dns), running.grpc, "gpu-2")
            )
            await until(lambda: by_uri.connected and by_dns.connected)
            caplog.clear()
            other = await stack.enter_async_context(agent(shows(ca, of_uri), running.grpc, "gpu-2"))
            await until(lambda: list(words(caplog, running.grpc)))
            assert (by_uri.connected, by_dns.connected, other.connected) == (True, True, False)
        (event, reason) = next(words(caplog, running.grpc))
        said = "the agent's certificate is for `gpu-1`, not for `gpu-2`: give it one with the URI"
        assert event == "coordinator refuses this agent"
        assert reason.startswith(f"PERMISSION_DENIED: {said} `spiffe://DOMAIN/node/gpu-2`")
        assert any(each.startswith(said) for each in running.reasons())


async def test_files_that_change_count_at_the_next_connect_and_broken_ones_are_said(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as running:
        authority = running.authority
        pair = authority.sign("agent", uris=for_node(NODE), hours=(-9, -1))
        dialling = shows(authority.file, pair)
        async with agent(dialling, running.grpc) as reporter:
            await until(running.reasons)
            authority.sign("agent", uris=for_node(NODE))  # in its place
            await until(lambda: reporter.connected)
        broken(running.server)
        async with agent(dialling, running.grpc) as reporter:
            await until(lambda: reporter.connected)  # by the last good one
            degraded: list[str] = []
            while not degraded:
                page = await running.page("/readyz")
                degraded = [text for text in page["degraded"] if "cannot be used" in text]
            assert "`tls.cert_file` holds no certificate in PEM" in degraded[0]
            assert "the last good ones stay in force" in degraded[0]
        metrics = await running.page("/metrics")
        assert 'lineside_degraded{reason="certificate_rejected"} 1.0' in metrics
        assert 'lineside_degraded{reason="certificate_ending"} 2.0' in metrics  # they hold a day
        line = next(
            line
            for line in metrics.splitlines()
            if line.startswith('lineside_certificate_remaining_seconds{what="certificate"}')
        )
        assert 86_000 < float(line.split()[1]) < 86_400
        authority.sign("server", dns=["new.svc"])
        async with agent(shows(authority.file, pair, "new.svc"), running.grpc) as reporter:
            await until(lambda: reporter.connected)
        # Another authority beside the first, as it is exchanged: agents of both are let in.
        other = Authority(tmp_path, "other")
        theirs = other.sign("theirs", uris=for_node("gpu-2"))
        ca = beside(authority, other)
        async with (
            agent(shows(ca, pair), running.grpc) as first,
            agent(shows(ca, theirs), running.grpc, "gpu-2") as second,
        ):
            await until(lambda: first.connected and second.connected)
