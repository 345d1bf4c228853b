"""Gateways that ask over real gRPC channels where to send requests, and send them themselves."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cli.main import main
from coordinator.config import EngineSpec, Gateway, Gateways
from coordinator.doors.certificates import self_signed
from lineside.v1 import router_pb2 as pb
from lineside.v1 import router_pb2_grpc as rpc
from tests import simulated
from tests.doors import CHAT, CHAT_PATH, Sim
from tests.gateways import Running, coordinator
from tests.simulated import MODEL
from tests.waiting import until

pytestmark = pytest.mark.flow

OPEN = Gateways(anonymous=True, transport="plaintext", leave_s=0)
SERVING, NOT_SERVING = 1, 2


@asynccontextmanager
async def asked(*sims: Sim, gateways: Gateways = OPEN, **settings: Any) -> AsyncIterator[Running]:
    specs = [EngineSpec(url=sim.url) for sim in sims]
    settings = {"route": "127.0.0.1:0", "gateways": gateways} | settings
    async with coordinator(*specs, **settings) as running:
        await until(running.ready)
        yield running


def stub_of(channel: grpc.aio.Channel) -> Any:
    return rpc.RouterStub(channel)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def router(running: Running) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(running.route) as channel:
        yield stub_of(channel)


def chat(**fields: Any) -> pb.RouteRequest:
    headers = [pb.Header(name="authorization", value="Bearer mine")]
    return pb.RouteRequest(
        method="POST", path=CHAT_PATH, headers=headers, body=json.dumps(CHAT | fields).encode()
    )


async def send(target: pb.Target) -> tuple[int, dict[str, Any]]:
    """Do what a gateway does with a target."""
    headers = {header.name: header.value for header in target.set_headers}
    async with (
        aiohttp.ClientSession() as session,
        session.post(target.url, data=target.body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Sim, Sim]]:
    """Without events, a coordinator is ready at once."""
    with simulated.engine("--no-kv-events") as one, simulated.engine("--no-kv-events") as two:
        yield Sim(one["http"]), Sim(two["http"])


@pytest.fixture
def sims(servers: tuple[Sim, Sim]) -> tuple[Sim, Sim]:
    return servers


@pytest.fixture
def sim(servers: tuple[Sim, Sim]) -> Sim:
    return servers[0]


async def test_a_gateway_asks_sends_and_reports(sim: Sim) -> None:
    async with asked(sim) as running, router(running) as stub:
        answer = await stub.Route(chat())
        target = answer.routed.target
        assert (target.endpoint, target.backend) == (sim.id, sim.id)
        assert target.url == f"http://{sim.id}{CHAT_PATH}"
        assert "authorization" in target.remove_headers
        assert await running.inflight() == [1]
        status, said = await send(target)
        assert status == 200
        usage = said["usage"]
        report = pb.ReportRequest(
            decision_id=answer.decision_id,
            event=pb.ReportRequest.FINISHED,
            status=200,
            age_ms=1,
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
        )
        for _ in range(2):
            await stub.Report(report)
        assert await running.inflight() == [0]
        record = await running.debug(f"/debug/decisions/{answer.decision_id}")
        assert record["outcome"]["end"] == "finished"
        assert record["outcome"]["prompt_tokens"] == usage["prompt_tokens"]
        metrics = await running.metrics()
        assert metrics['lineside_decision_reports_total{what="finished"}'] == 1
        assert metrics['lineside_decision_reports_total{what="late"}'] == 1
        assert metrics["lineside_open_decisions"] == 0


async def test_a_refusal_is_an_answer(sim: Sim) -> None:
    async with asked(sim) as running, router(running) as stub:
        answer = await stub.Route(chat(model="nope"))
        assert answer.WhichOneof("outcome") == "refused"
        assert (answer.refused.status, answer.refused.reason) == (404, "unknown_model")
        assert json.loads(answer.refused.body)["error"]["code"] == 404
        request = chat()
        request.subset.append("10.9.9.9:8000")
        answer = await stub.Route(request)
        assert (answer.refused.status, answer.refused.reason) == (503, "nothing_in_subset")
        request.subset.append(sim.id)
        assert (await stub.Route(request)).routed.target.endpoint == sim.id


async def test_fallbacks_are_the_other_engines(sims: tuple[Sim, Sim]) -> None:
    async with asked(*sims) as running, router(running) as stub:
        answer = await stub.Route(chat())
        (fallback,) = answer.routed.fallbacks
        assert {answer.routed.target.backend, fallback.backend} == {sim.id for sim in sims}
        assert (await send(fallback))[0] == 200
        report = pb.ReportRequest(
            decision_id=answer.decision_id,
            event=pb.ReportRequest.FINISHED,
            backend=fallback.backend,
        )
        await stub.Report(report)
        record = await running.debug(f"/debug/decisions/{answer.decision_id}")
        assert record["decision"]["id"] == fallback.backend
        assert [attempt["engine"] for attempt in record["attempts"]] == [
            answer.routed.target.backend
        ]


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_only_gateways_that_are_known_may_ask_and_name_a_tenant(
    sim: Sim, tmp_path: Path
) -> None:
    token = tmp_path / "edge"
    token.write_text("s3cret\n")
    known = Gateways(
        allowed=(Gateway(name="edge", token_file=str(token)),), transport="plaintext", leave_s=0
    )
    tenant = chat()
    tenant.tenant = "blue"
    async with asked(sim, gateways=known) as running, router(running) as stub:
        code, text = await status_of(stub.Route(chat()))
        assert code is grpc.StatusCode.UNAUTHENTICATED and "token" in text
        wrong = [("authorization", "Bearer other")]
        assert (await status_of(stub.Route(chat(), metadata=wrong)))[0] is code
        assert (await status_of(stub.Report(pb.ReportRequest(), metadata=wrong)))[0] is code
        right = [("authorization", "Bearer s3cret")]
        answer = await stub.Route(tenant, metadata=right)
        record = await running.debug(f"/debug/decisions/{answer.decision_id}")
        assert record["tenant"] == "blue"
        tenant.tenant = "two words"
        code, _ = await status_of(stub.Route(tenant, metadata=right))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        token.write_text("n3w")
        renewed = [("authorization", "Bearer n3w")]

        async def is_read() -> bool:
            try:
                return bool(await stub.Route(chat(), metadata=renewed))
            except grpc.aio.AioRpcError:
                return False

        await until(is_read)
        assert (await running.metrics())["lineside_gateway_strangers_total"] >= 3


async def test_callers_on_this_machine_may_ask_where_that_is_allowed_and_name_nobody(
    sim: Sim,
) -> None:
    tenant = chat()
    tenant.tenant = "blue"
    async with asked(sim) as running, router(running) as stub:
        code, text = await status_of(stub.Route(tenant))
        assert code is grpc.StatusCode.PERMISSION_DENIED and "tenant" in text


async def health_of(channel: grpc.aio.Channel, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=name))).status)


NAMES = (
    "",
    "readiness",
    "lineside.v1.Router",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
)


async def test_health_follows_readiness_and_says_no_first_on_the_way_out(sim: Sim) -> None:
    gateways = Gateways(anonymous=True, transport="plaintext", leave_s=0.4)
    async with (
        asked(sim, gateways=gateways) as running,
        grpc.aio.insecure_channel(running.route) as channel,
    ):

        async def serves() -> bool:
            return [await health_of(channel, name) for name in NAMES] == [SERVING] * len(NAMES)

        await until(serves)
        assert await health_of(channel, "liveness") == SERVING
        stub = stub_of(channel)
        answer = await stub.Route(chat())
        running.stop.set()

        async def leaves() -> bool:
            return await health_of(channel, "") == NOT_SERVING

        await until(leaves)
        assert [await health_of(channel, name) for name in NAMES] == [NOT_SERVING] * len(NAMES)
        assert await health_of(channel, "liveness") == SERVING
        late = await stub.Route(chat())  # whoever has not noticed yet is still served
        assert late.WhichOneof("outcome") == "routed"
        for each in (answer, late):
            report = pb.ReportRequest(decision_id=each.decision_id, event=pb.ReportRequest.FAILED)
            await stub.Report(report)


async def test_the_services_describe_themselves(sim: Sim) -> None:
    async with asked(sim) as running, grpc.aio.insecure_channel(running.route) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest
        questions = [
            ask(list_services=""),
            ask(file_containing_symbol="lineside.v1.Router"),
        ]
        answers = [answer async for answer in stub.ServerReflectionInfo(iter(questions))]
        names = {service.name for service in answers[0].list_services_response.service}
        assert {"lineside.v1.Router", "grpc.health.v1.Health"} <= names
        (file,) = answers[1].file_descriptor_response.file_descriptor_proto
        assert b"RouteRequest" in file


async def test_what_nobody_reports_on_is_released(sim: Sim) -> None:
    gateways = Gateways(anonymous=True, transport="plaintext", leave_s=0, report_s=0.2)
    async with asked(sim, gateways=gateways) as running, router(running) as stub:
        answer = await stub.Route(chat())
        assert await running.inflight() == [1]

        async def released() -> bool:
            return await running.inflight() == [0]

        await until(released)
        record = await running.debug(f"/debug/decisions/{answer.decision_id}")
        assert record["outcome"]["end"] == "unreported"


async def test_a_count_is_sent_to_an_engine_and_models_are_listed(sim: Sim) -> None:
    async with asked(sim) as running, router(running) as stub:
        message = {"model": MODEL, "messages": CHAT["messages"]}
        path = "/v1/messages/count_tokens"
        count = pb.RouteRequest(path=path, body=json.dumps(message).encode())
        answer = await stub.Route(count)
        assert (answer.decision_id, answer.WhichOneof("outcome")) == ("", "routed")
        assert answer.routed.target.url == f"http://{sim.id}{path}"
        status, said = await send(answer.routed.target)
        assert (status, said["input_tokens"] > 0) == (200, True)
        assert await running.inflight() == [0]
        answer = await stub.Route(pb.RouteRequest(method="GET", path="/v1/models"))
        assert (answer.decision_id, answer.WhichOneof("outcome")) == ("", "answered")
        assert answer.answered.status == 200
        assert [each["id"] for each in json.loads(answer.answered.body)["data"]] == [MODEL]
        query = {"method": "GET", "path": "/v1/models", "headers": {"anthropic-version": "1"}}
        told = json.loads((await running.post("/lineside/v1/route", query))[2])["answered"]
        assert (told["status"], json.loads(told["body"])["last_id"]) == (200, MODEL)
        assert await running.debug("/debug/decisions") == []


# --- JSON -----------------------------------------------------------------------------------------


async def test_the_same_query_as_json(sim: Sim) -> None:
    query = {"path": CHAT_PATH, "headers": {"x-request-id": "r1"}, "body": CHAT}
    async with asked(sim) as running:
        status, _, raw = await running.post("/lineside/v1/route", query)
        answer = json.loads(raw)
        assert status == 200
        target = answer["routed"]["target"]
        assert (target["endpoint"], target["backend"]) == (sim.id, sim.id)
        assert target["set_headers"]["x-request-id"] == "r1"
        assert json.loads(target["body"]) == CHAT
        assert await running.inflight() == [1]
        report = {"decision_id": answer["decision_id"], "event": "aborted", "completion_tokens": 2}
        assert (await running.post("/lineside/v1/report", report))[0] == 200
        assert await running.inflight() == [0]
        text = {"path": CHAT_PATH, "body": '{"model": "nope"'}
        _, _, raw = await running.post("/lineside/v1/route", text)
        assert json.loads(raw)["refused"]["reason"] == "bad_request"
        none = query | {"subset": []}
        _, _, raw = await running.post("/lineside/v1/route", none)
        assert json.loads(raw)["refused"]["reason"] == "nothing_in_subset"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        pytest.param({"path": CHAT_PATH}, 400, id="no body"),
        pytest.param({"path": CHAT_PATH, "body": {}, "pth": 1}, 400, id="an unknown field"),
        pytest.param({"path": CHAT_PATH, "body": {}, "tenant": "blue"}, 403, id="a tenant"),
    ],
)
async def test_queries_that_cannot_be_read_are_refused_plainly(
    sim: Sim, query: dict[str, Any], status: int
) -> None:
    async with asked(sim, route=None) as running:
        got, _, raw = await running.post("/lineside/v1/route", query)
        assert (got, json.loads(raw)["error"]["code"]) == (status, status)


async def test_by_default_nobody_may_ask(sim: Sim) -> None:
    async with asked(sim, route=None, gateways=Gateways()) as running:
        for path in ("route", "report"):
            status, _, raw = await running.post(f"/lineside/v1/{path}", {})
            assert (status, json.loads(raw)["error"]["code"]) == (401, 401)


# --- TLS ------------------------------------------------------------------------------------------


def secure(running: Running, root: bytes, **client: bytes) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(root, **client)
    return grpc.aio.secure_channel(running.route, credentials)


async def test_tls_is_the_default_and_its_own_certificate_can_be_trusted(
    sim: Sim, tmp_path: Path
) -> None:
    kept = Gateways(anonymous=True, self_signed_dir=str(tmp_path / "tls"), leave_s=0)
    for _ in range(2):
        async with asked(sim, gateways=kept) as running:
            root = (tmp_path / "tls" / "tls.crt").read_bytes()
            async with secure(running, root) as channel:
                answer = await stub_of(channel).Route(chat(), timeout=5)
                assert answer.routed.target.backend == sim.id
            async with secure(running, self_signed(["127.0.0.1"]).chain) as channel:
                code, _ = await status_of(stub_of(channel).Route(chat(), timeout=5))
                assert code is grpc.StatusCode.UNAVAILABLE
    assert (tmp_path / "tls" / "tls.key").stat().st_mode & 0o777 == 0o600


def write(folder: Path) -> bytes:
    made = self_signed(["127.0.0.1"])
    (folder / "k.pem").write_bytes(made.key)
    (folder / "c.pem").write_bytes(made.chain)
    return made.chain


async def test_a_certificate_in_files_is_read_again_when_it_changes(
    sim: Sim, tmp_path: Path
) -> None:
    first = write(tmp_path)
    files = Gateways(
        anonymous=True,
        cert_file=str(tmp_path / "c.pem"),
        key_file=str(tmp_path / "k.pem"),
        leave_s=0,
    )
    async with asked(sim, gateways=files) as running, secure(running, first) as channel:
        await stub_of(channel).Route(chat(), timeout=5)
        (tmp_path / "c.pem").write_bytes(self_signed(["127.0.0.1"]).chain)  # half a change
        async with secure(running, first) as another:
            await stub_of(another).Route(chat(), timeout=5)
        second = write(tmp_path)
        async with secure(running, second) as another:
            await stub_of(another).Route(chat(), timeout=5)
        await stub_of(channel).Route(chat(), timeout=5)  # it lives on
        left = 'lineside_gateway_certificate_remaining_seconds{what="certificate"}'
        assert (await running.metrics())[left] > 0


async def test_a_certificate_says_who_calls(sim: Sim, tmp_path: Path) -> None:
    mine = self_signed(["127.0.0.1"])  # its common name is the same as any other's
    authority = tmp_path / "ca.pem"
    authority.write_bytes(mine.chain)
    kept = tmp_path / "tls"
    gateways = Gateways(
        allowed=(Gateway(name="edge", certificate="lineside coordinator"),),
        client_ca_file=str(authority),
        self_signed_dir=str(kept),
        leave_s=0,
    )
    tenant = chat()
    tenant.tenant = "blue"
    async with asked(sim, gateways=gateways) as running:
        root = (kept / "tls.crt").read_bytes()
        shown = {"private_key": mine.key, "certificate_chain": mine.chain}
        async with secure(running, root, **shown) as channel:
            answer = await stub_of(channel).Route(tenant, timeout=5)
            assert answer.WhichOneof("outcome") == "routed"
        async with secure(running, root) as channel:
            code, _ = await status_of(stub_of(channel).Route(chat(), timeout=5))
            assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_taken_address_is_said_plainly(sim: Sim) -> None:
    async with asked(sim) as running:
        with pytest.raises(OSError, match="cannot listen on"):
            async with asyncio.timeout(10), asked(sim, route=running.route):
                pass


# --- clients --------------------------------------------------------------------------------------


async def test_the_client_of_the_docs_works(sim: Sim, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "routing-query.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert code.count("\n") <= 30
    (tmp_path / "ask.py").write_text(code)
    async with asked(sim) as running:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(tmp_path / "ask.py"), running.route, MODEL),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert json.loads(out)["choices"]
        assert process.returncode == 0
        assert await running.inflight() == [0]
        (record,) = await running.debug("/debug/decisions")
        assert record["outcome"]["end"] == "finished"


async def test_the_command_line_asks_like_a_gateway(
    sim: Sim, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request, token = tmp_path / "r.json", tmp_path / "token"
    request.write_text(json.dumps(CHAT))
    token.write_text("s3cret")
    kept = tmp_path / "tls"
    gateways = Gateways(
        allowed=(Gateway(name="edge", token_file=str(token)),),
        self_signed_dir=str(kept),
        leave_s=0,
    )

    async def lineside(*options: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, ["route", "-f", str(request), *options])
        return code, *capsys.readouterr()

    async with asked(sim, gateways=gateways) as running:
        where = ("--grpc", running.route, "--ca-file", str(kept / "tls.crt"))
        other = tmp_path / "other.crt"
        other.write_bytes(self_signed(["127.0.0.1"]).chain)
        code, out, _ = await lineside(*where, "--token-file", str(token))
        assert code == 0
        assert f"send to http://{sim.id}{CHAT_PATH}" in out
        code, out, _ = await lineside(*where, "--token-file", str(token), "--json")
        assert json.loads(out)["routed"]["target"]["backend"] == sim.id
        assert await running.inflight() == [0]
        code, _, err = await lineside(*where)
        assert (code, "token" in err) == (1, True)
        request.write_text(json.dumps(CHAT | {"model": "nobody"}))
        code, out, _ = await lineside(*where, "--token-file", str(token))
        assert code == 1
        assert "refused: 404 unknown_model" in out
        code, _, err = await lineside("--grpc", running.route)
        assert (code, "could not reach" in err) == (3, True)
        assert "does it speak plaintext?" in err and "set `gateways.self_signed_dir`" in err
        code, _, err = await lineside("--grpc", running.route, "--ca-file", str(other))
        assert (code, f"a certificate that {other} vouches for?" in err) == (3, True)
