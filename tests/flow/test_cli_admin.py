"""`lineside get` and `lineside route` against a real admin listener: output and exit codes."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from cli.main import main
from coordinator.config import Config, EngineSpec
from coordinator.main import run
from tests.fakes import MODEL, FakeEngine, fake_engines
from tests.flow.test_gateway import CHAT, coordinator

pytestmark = pytest.mark.flow

Lineside = Callable[..., Awaitable[tuple[int, str, str]]]

TOKEN = "t0ken-of-the-admin"


@pytest.fixture
def lineside(capsys: pytest.CaptureFixture[str]) -> Lineside:
    """Run the command in a thread, beside the loop that serves it."""

    async def run(*argv: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, argv)
        return code, *capsys.readouterr()

    return run


async def test_a_request_can_be_followed_from_the_command_line(
    lineside: Lineside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = tmp_path / "r.json"
    request.write_text(json.dumps(CHAT))
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        monkeypatch.setenv("LINESIDE_ADMIN", running.admin)
        _, headers, _ = await running.post("/v1/chat/completions", CHAT)
        await running.post("/v1/chat/completions", CHAT | {"model": "nobody"})
        record = headers["x-lineside-decision"]

        code, out, err = await lineside("get", "engines")
        assert (code, err) == (0, "")
        assert out.splitlines()[1].split()[:3] == [engine.endpoint, MODEL, "none"]

        code, out, _ = await lineside("get", "decisions")
        assert (code, [line.split()[0] for line in out.splitlines()][2]) == (0, record)

        code, out, _ = await lineside("get", "decisions", "--refused", "--json")
        assert [each["model"] for each in json.loads(out)] == ["nobody"]

        code, out, _ = await lineside("get", "decisions", "--model", "absent")
        assert (code, out) == (0, "no decision matches\n")

        code, out, _ = await lineside("get", "decisions", record)
        assert code == 0
        assert f"chosen: {engine.endpoint}, the only candidate" in out
        assert "outcome: finished, status 200" in out

        _, out, _ = await lineside("get", "decisions", record, "--json")
        assert json.loads(out) == await running.debug(f"/debug/decisions/{record}")

        code, out, _ = await lineside("route", "-f", str(request))
        assert code == 0
        assert f"chosen: {engine.endpoint}" in out
        assert "dry run" in out

        code, out, _ = await lineside("route", "-f", str(request), "--json")
        assert json.loads(out)["candidates"][0]["id"] == engine.endpoint
        assert len(await running.debug("/debug/decisions")) == 2


@pytest.mark.parametrize(
    ("command", "kind", "code"),
    [
        pytest.param("get engines", list, 0, id="engines"),
        pytest.param("get policies", dict, 0, id="policies"),
        pytest.param("get members", dict, 0, id="members"),
        pytest.param("get pools", list, 0, id="pools"),
        pytest.param("get decisions", list, 0, id="decisions"),
        pytest.param("route", dict, 0, id="route"),
        pytest.param("policy rollback", dict, 1, id="nothing to roll back to"),
    ],
)
async def test_each_command_that_asks_prints_json_or_lines_without_colours(
    command: str, kind: type, code: int, lineside: Lineside, tmp_path: Path
) -> None:
    request = tmp_path / "r.json"
    request.write_text(json.dumps(CHAT))
    words = [*command.split(), *(("-f", str(request)) if command == "route" else ())]
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        found, out, err = await lineside(*words, "--admin", running.admin, "--json")
        assert (found, bool(err)) == (code, code != 0)
        assert isinstance(json.loads(out or "{}"), kind)
        found, out, err = await lineside(*words, "--admin", running.admin)
        assert (found, "\x1b" in out + err) == (code, False)
        assert out + err


async def test_a_watch_ends_once_nobody_reads_it() -> None:
    async with (
        asyncio.timeout(20),
        fake_engines(FakeEngine()) as (engine,),
        coordinator(engine) as running,
    ):
        watch = f"{sys.executable} -m cli.main get engines --watch --admin {running.admin}"
        process = await asyncio.create_subprocess_shell(
            f"{watch} | head -1", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
    assert (out.split()[0], err) == (b"engine", b"")


async def test_https_to_a_listener_that_speaks_http_is_said(lineside: Lineside) -> None:
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        admin = running.admin.replace("http:", "https:")
        code, _, err = await lineside("get", "engines", "--admin", admin)
    assert (code, err.splitlines()[0]) == (
        3,
        f"lineside: could not reach {admin}: TLS fails: an admin listener speaks http",
    )


async def test_watching_goes_on_while_the_coordinator_is_away() -> None:
    async with fake_engines(FakeEngine()) as (engine,), asyncio.timeout(20):
        async with coordinator(engine) as running:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cli.main", "get", "engines", "--watch"),
                *("--admin", running.admin),
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            for _ in range(2):
                while not (await process.stdout.readline()).startswith(b"engine "):
                    pass  # what the columns mean and what is wrong, below the table before
                assert (await process.stdout.readline()).startswith(engine.endpoint.encode())
        while b"trying again" not in await process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


async def test_what_is_refused_exits_with_1(lineside: Lineside, tmp_path: Path) -> None:
    request = tmp_path / "r.json"
    async with fake_engines(FakeEngine()) as (engine,), coordinator(engine) as running:
        where = ("--admin", running.admin)
        request.write_text(json.dumps(CHAT | {"model": "nobody"}))
        code, out, _ = await lineside("route", "-f", str(request), *where)
        assert code == 1
        assert "refused: 404 unknown_model" in out
        request.write_text('{"path": "/v1/nothing", "body": {"messages": []}}')
        code, _, err = await lineside("route", "-f", str(request), *where)
        assert (code, err.startswith("lineside: `path` must be one of")) == (1, True)
        code, _, err = await lineside("get", "decisions", "none", *where)
        assert (code, err) == (
            1,
            "lineside: there is no such decision, or it is no longer kept\n",
        )


async def test_the_token_comes_from_the_environment_and_is_never_shown(
    lineside: Lineside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fake_engines(FakeEngine()) as (engine,),
        coordinator_with_token(engine) as admin,
    ):
        monkeypatch.setenv("LINESIDE_ADMIN", admin)
        code, out, err = await lineside("get", "engines")
        assert (code, out) == (1, "")
        assert err == (
            f"lineside: {admin} asks for a token\n"
            "  help: set LINESIDE_ADMIN_TOKEN to the coordinator's `admin_token`\n"
        )
        monkeypatch.setenv("LINESIDE_ADMIN_TOKEN", "wrong-token")
        code, _, err = await lineside("get", "engines")
        assert (code, "refuses the token" in err, "wrong-token" in err) == (1, True, False)
        monkeypatch.setenv("LINESIDE_ADMIN_TOKEN", TOKEN)
        code, out, err = await lineside("get", "engines", "--json")
        assert (code, len(json.loads(out))) == (0, 1)
        assert TOKEN not in out + err


@asynccontextmanager
async def coordinator_with_token(engine: FakeEngine) -> AsyncIterator[str]:
    """Run a coordinator whose debug endpoints ask for a token; give its admin listener."""
    listen = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
    config = Config(
        transport="plaintext", engines=(EngineSpec(url=engine.url),), admin_token=TOKEN, **listen
    )
    stop = asyncio.Event()
    listening: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(config, stop, listening.set_result))
    yield f"http://{(await listening)['admin']}"
    stop.set()
    await task


async def test_nobody_there_exits_with_3(lineside: Lineside) -> None:
    code, out, err = await lineside("get", "engines", "--admin", "127.0.0.1:9")
    assert (code, out) == (3, "")
    line, help = err.splitlines()
    assert line == "lineside: could not reach http://127.0.0.1:9: connection refused"
    assert help.startswith("  help: is a coordinator running")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        pytest.param(200, "<html>", "does not answer as an admin listener", id="a stranger"),
        pytest.param(200, "{}", "does not answer as an admin listener", id="other JSON"),
        pytest.param(404, "{}", "does not answer as an admin listener", id="the wrong port"),
        pytest.param(302, "", "does not answer as an admin listener", id="a redirect"),
        pytest.param(
            500, '{"error": {"message": "an internal error"}}', "failed: an internal", id="a fault"
        ),
        pytest.param(403, '{"error": {"message": "no"}}', "on its own machine only", id="afar"),
    ],
)
async def test_strange_answers_are_told_apart(
    lineside: Lineside, status: int, body: str, said: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        headers = {"location": "http://192.0.2.1/"} if status == 302 else {}
        return web.Response(status=status, text=body, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        where = f"http://127.0.0.1:{runner.addresses[0][1]}"
        code, _, err = await lineside("get", "engines", "--admin", where)
        assert code == (1 if status == 403 else 3)
        assert said in err
    finally:
        await runner.cleanup()
