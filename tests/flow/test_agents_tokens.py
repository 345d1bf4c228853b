"""Agents that prove their node by a ServiceAccount token, before a scripted API server in TLS."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.config import AgentConfig
from agent.dialling import Dialling
from agent.report import Reporter
from coordinator.agents.ingest import serving
from coordinator.config import Config
from coordinator.trust import token_review
from coordinator.trust.agents import AgentTrust
from coordinator.trust.settings import ServiceAccounts
from lineside.ids import NodeId
from tests.authority import Authority
from tests.streams import CLOCK, Coordinator, FakeHub
from tests.waiting import until

pytestmark = pytest.mark.flow

NODE_NAME = "authentication.kubernetes.io/node-name"


@dataclass
class Api:
    """An API server that knows tokens, by the node that each is of."""

    nodes: dict[str, str] = field(default_factory=dict)
    status: int = 201
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Who asked, by the token that came along, and about which token."""
    url: str = ""

    async def review(self, request: web.Request) -> web.Response:
        spec = (await request.json())["spec"]
        self.asked.append((request.headers["authorization"], spec["token"]))
        node = self.nodes.get(spec["token"])
        status: dict[str, Any] = {"authenticated": False}
        if node is not None:
            status = {
                "authenticated": True,
                "audiences": spec["audiences"],
                "user": {
                    "username": "system:serviceaccount:lineside:lineside-agent",
                    "extra": {NODE_NAME: [node]},
                },
            }
        return web.json_response({"kind": "TokenReview", "status": status}, status=self.status)

    @asynccontextmanager
    async def serving(self, authority: Authority) -> AsyncIterator["Api"]:
        app = web.Application()
        app.router.add_post(token_review.PATH, self.review)
        pair = authority.sign("apiserver")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.cert, pair.key)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()


@asynccontextmanager
async def coordinator(trust: AgentTrust) -> AsyncIterator[str]:
    """Serve agents that are judged by `trust`."""
    parts = Coordinator(proof=trust.proof, noted=trust.note)
    await parts.numbering.follow()
    async with serving(parts.servicer, "127.0.0.1:0", trust.credentials()) as address:
        yield address


def config(api: Api, ca_file: str, token_file: Path) -> Config:
    said = ServiceAccounts(
        accounts=("lineside/lineside-agent",),
        api_server=api.url,
        ca_file=ca_file,
        token_file=str(token_file),
    )
    return Config(transport="plaintext", node_proof="service-account", service_accounts=said)


@asynccontextmanager
async def agent(address: str, node: str, token: Path) -> AsyncIterator[Reporter]:
    settings = AgentConfig(
        coordinators=(address,), transport="plaintext", node=node, token_file=str(token)
    )
    line = Dialling.of(settings).to(address)
    reporter = Reporter(line, NodeId(node), "life", FakeHub(), CLOCK)
    running = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def words(caplog: pytest.LogCaptureFixture) -> list[str]:
    fields = (getattr(record, "fields", {}) for record in caplog.records)
    return [each["reason"] for each in fields if "coordinator" in each]


async def test_a_token_opens_its_own_node_and_a_file_that_is_exchanged_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("coordinator-1\n")
    authority = Authority(tmp_path)
    async with Api({"hunter-a": "gpu-1"}).serving(authority) as api:
        trust = AgentTrust(config(api, authority.file, ours), CLOCK)
        async with coordinator(trust) as address:
            async with agent(address, "gpu-1", theirs) as reporter:
                await until(lambda: words(caplog))  # there is no file yet
                assert "sends no ServiceAccount token" in words(caplog)[0]
                theirs.write_text("hunter-a\n")
                await until(lambda: reporter.connected)
            assert api.asked == [("Bearer coordinator-1", "hunter-a")]
            caplog.clear()
            async with agent(address, "gpu-2", theirs) as reporter:
                await until(lambda: words(caplog))
                assert words(caplog)[0].startswith(
                    "PERMISSION_DENIED: the agent's token is of node `gpu-1`, and it speaks for"
                )
                theirs.write_text("hunter-b")
                await until(lambda: len(words(caplog)) > 1)
                assert words(caplog)[1].startswith(
                    "UNAUTHENTICATED: the API server does not accept the agent's token"
                )
                ours.write_text("coordinator-2")  # the kubelet exchanged it
                api.nodes["hunter-c"] = "gpu-2"
                theirs.write_text("hunter-c")
                await until(lambda: reporter.connected)
            assert api.asked[-1] == ("Bearer coordinator-2", "hunter-c")
            assert {code for code, _ in trust.degraded()} == {"agent_refused"}
    said = [[record.getMessage(), vars(record).get("fields")] for record in caplog.records]
    assert said and "hunter" not in json.dumps(said, default=str)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("away", "the API server cannot be asked about the agent's token: cannot connect"),
        ("refuses us", "it answers 403: we may not: give our ServiceAccount `create` on"),
        ("foreign", "its certificate is not trusted: look at `service_accounts.ca_file`"),
        ("no token of ours", "our own account's files: no such file or directory"),
    ],
)
async def test_an_api_server_that_does_not_answer_lets_nobody_new_in(
    case: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.write_text("hunter-a")
    if case != "no token of ours":
        ours.write_text("t")
    authority = Authority(tmp_path)
    trusted = Authority(tmp_path, "stranger") if case == "foreign" else authority
    api = Api({"hunter-a": "gpu-1"}, status=403 if case == "refuses us" else 201)
    async with api.serving(authority):
        if case == "away":
            api.url = "https://127.0.0.1:1"
        trust = AgentTrust(config(api, trusted.file, ours), CLOCK)
        async with coordinator(trust) as address, agent(address, "gpu-1", theirs) as reporter:
            await until(lambda: words(caplog))
            assert not reporter.connected
    assert words(caplog)[0].startswith("UNAVAILABLE: "), words(caplog)
    assert said in words(caplog)[0]
    assert "token_review_away" in {code for code, _ in trust.degraded()}
