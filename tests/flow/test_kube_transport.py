"""Requests and watches over sockets, before a server that fails in the ways of a real one."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coordinator.kube import login, transport
from coordinator.kube.api import JSON_PATCH, Api, ApiAway, Refused
from coordinator.kube.settings import Kubernetes
from coordinator.kube.transport import connected
from tests.kube_http import Handler, kubeconfig, listening

pytestmark = pytest.mark.flow


@asynccontextmanager
async def served(folder: Path, handler: Handler, **user: Any) -> AsyncIterator[Api]:
    async with listening(handler) as url:
        file = kubeconfig(folder, url, **user)
        api = await connected(Kubernetes(access="kubeconfig", kubeconfig=file))
        try:
            yield api
        finally:
            await api.close()


def streaming(*parts: bytes | float, breaks: bool = False) -> Handler:
    """Answer with parts, one packet each, and silences."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        for part in parts:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                await response.write(part)
                await asyncio.sleep(0.01)
        if breaks:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


async def watched(api: Api, idle_s: float = 5.0) -> list[bytes]:
    async with aclosing(api.watch("/w", [("watch", "1")], idle_s)) as watch:
        return [line async for line in watch]


async def test_lines_are_whole_however_they_arrive(tmp_path: Path) -> None:
    parts = [b'{"a"', b':1}\n{"b":2}\n\n{"c', b'":3}', b"\n"]
    async with served(tmp_path, streaming(*parts)) as api:
        assert await watched(api) == [b"", b'{"a":1}', b'{"b":2}', b'{"c":3}']


async def test_a_line_may_be_as_large_as_an_object(tmp_path: Path) -> None:
    large = b'"' + b"x" * 3_000_000 + b'"'
    async with served(tmp_path, streaming(large, b"\n")) as api:
        assert await watched(api) == [b"", large]


async def test_a_line_without_an_end_is_not_kept_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_LINE_BYTES", 100_000)
    async with served(tmp_path, streaming(b"x" * 60_000, b"x" * 60_000, 5.0)) as api:
        with pytest.raises(ApiAway, match="larger than"):
            await watched(api)


async def test_half_a_line_is_none(tmp_path: Path) -> None:
    async with served(tmp_path, streaming(b'{"a":1}\n{"b"')) as api:
        with pytest.raises(ApiAway, match="within an event"):
            await watched(api)


async def test_a_connection_that_breaks_is_told(tmp_path: Path) -> None:
    async with served(tmp_path, streaming(b'{"a":1}\n', breaks=True)) as api:
        with pytest.raises(ApiAway, match="the connection broke"):
            await watched(api)


async def test_a_silence_ends(tmp_path: Path) -> None:
    async with served(tmp_path, streaming(b'{"a":1}\n', 5.0)) as api:
        with pytest.raises(ApiAway, match="no answer in time"):
            await watched(api, 0.2)


async def test_a_watch_that_is_not_opened_carries_the_answer(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        said = {"message": "too old\nresource version", "code": 410}
        return web.json_response(said, status=410, headers={"retry-after": "7"})

    async with served(tmp_path, answer) as api:
        with pytest.raises(Refused, match="it answers 410: too old resource version") as raised:
            await watched(api)
        assert (raised.value.answer.status, raised.value.answer.retry_after_s) == (410, 7.0)


async def test_a_watch_that_is_left_lets_its_connection_go(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{}\n")
        try:
            while True:
                await asyncio.sleep(0.02)
                await response.write(b"{}\n")
        except (ConnectionError, asyncio.CancelledError):
            left.set()
            raise

    async with served(tmp_path, answer) as api:
        async with aclosing(api.watch("/w", [], 5.0)) as watch:
            async for line in watch:
                if line:
                    break
        async with asyncio.timeout(5):
            await left.wait()


async def test_what_is_asked_arrives(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        said = {
            "method": request.method,
            "path": request.path_qs,
            "type": request.content_type,
            "token": request.headers.get("authorization"),
            "body": json.loads(await request.read() or b"null"),
        }
        return web.json_response(said, status=201)

    patch = [{"op": "add", "path": "/status", "value": {"x": None}}]
    async with served(tmp_path, answer) as api:
        got = await api.ask("PATCH", "/a/b", [("q", "x y")], patch, JSON_PATCH)
        assert got.is_good and json.loads(got.body) == {
            "method": "PATCH",
            "path": "/a/b?q=x+y",
            "type": JSON_PATCH,
            "token": "Bearer t0ken",
            "body": patch,
        }


async def test_nobody_there_is_told(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "http://127.0.0.1:1")
    api = await connected(Kubernetes(access="kubeconfig", kubeconfig=file))
    with pytest.raises(ApiAway, match="cannot connect"):
        await api.ask("GET", "/")
    with pytest.raises(ApiAway, match="cannot connect"):
        await watched(api)
    await api.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"access": "kubeconfig", "kubeconfig": "/no/such/file"},
        {"access": "in-cluster"},
    ],
    ids=["no file", "no pod"],
)
async def test_who_cannot_log_in_is_told(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(OSError, match="cannot log in to the cluster"):
        await connected(Kubernetes(**settings))  # type: ignore[arg-type]


PLUGIN = """\
import json, pathlib
count = pathlib.Path(COUNT)
number = int(count.read_text()) + 1
count.write_text(str(number))
status = {"token": f"t{number}", "expirationTimestamp": "2020-01-01T00:00:00Z"}
print(json.dumps({"apiVersion": API, "kind": "ExecCredential", "status": status}))
"""


async def test_a_token_that_has_run_out_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "RENEW_S", 0.0)
    count, plugin = tmp_path / "count", tmp_path / "plugin.py"
    count.write_text("0")
    api_version = "client.authentication.k8s.io/v1"
    text = PLUGIN.replace("COUNT", repr(str(count))).replace("API", repr(api_version))
    plugin.write_text(text)
    command = {"apiVersion": api_version, "command": sys.executable, "args": [str(plugin)]}
    tokens = []

    async def answer(request: web.Request) -> web.StreamResponse:
        tokens.append(request.headers["authorization"])
        return web.json_response({})

    async with served(tmp_path, answer, exec=command) as api:
        for _ in range(2):
            await api.ask("GET", "/")
    assert tokens == ["Bearer t2", "Bearer t3"]


class Guard:
    """A server that knows one token, and counts whom it turns away."""

    def __init__(self, token: str) -> None:
        self.token, self.turned_away = token, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("authorization") == f"Bearer {self.token}":
            return web.Response(text="{}\n", content_type="application/json")
        self.turned_away += 1
        return web.json_response({"message": "Unauthorized"}, status=401)


async def test_a_kubeconfig_that_changed_is_read_when_its_login_is_refused(tmp_path: Path) -> None:
    guard = Guard("t0ken")
    async with served(tmp_path, guard.answer) as api:
        url = json.loads((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        assert (await api.ask("GET", "/")).status == 200
        guard.token = "exchanged"
        kubeconfig(tmp_path, url, token="exchanged")
        asked = [api.ask("GET", "/") for _ in range(8)]  # as all watches do when a token ends
        assert [each.status for each in await asyncio.gather(*asked)] == [200] * 8
        assert guard.turned_away <= 8
        guard.token = "nobody's"
        before = guard.turned_away
        for _ in range(20):  # a refusal that stays one is no reason to read a file all the time
            assert (await api.ask("GET", "/")).status == 401
        assert guard.turned_away == before + 20


async def test_a_watch_logs_in_anew_as_well(tmp_path: Path) -> None:
    guard = Guard("exchanged")
    async with served(tmp_path, guard.answer, token="t0ken") as api:
        url = json.loads((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        kubeconfig(tmp_path, url, token="exchanged")
        assert await watched(api) == [b"", b"{}"]


async def test_a_kubeconfig_that_names_another_server_counts_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "LOOK_S", 0.0)
    file = kubeconfig(tmp_path, "http://127.0.0.1:1")
    api = await connected(Kubernetes(access="kubeconfig", kubeconfig=file))
    with pytest.raises(ApiAway):
        await api.ask("GET", "/")
    async with served(tmp_path, Guard("t0ken").answer):  # it writes the file anew
        assert (await api.ask("GET", "/")).status == 200
    await api.close()


@pytest.mark.parametrize(
    "said", ["", "users: [5]", "{", None], ids=["empty", "odd", "half", "gone"]
)
async def test_a_kubeconfig_that_cannot_be_used_leaves_the_login_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    monkeypatch.setattr(login, "LOOK_S", 0.0)
    file, guard = tmp_path / "kubeconfig", Guard("t0ken")
    async with served(tmp_path, guard.answer) as api:
        whole = file.read_text()
        assert (await api.ask("GET", "/")).status == 200
        await asyncio.to_thread(
            file.unlink if said is None else partial(file.write_text, said or "")
        )
        assert (await api.ask("GET", "/")).status == 200
        guard.token = "other"
        assert (await api.ask("GET", "/")).status == 401
        await asyncio.to_thread(file.write_text, whole.replace("t0ken", "other"))
        assert (await api.ask("GET", "/")).status == 200


async def test_a_token_that_was_revoked_is_asked_of_its_plugin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, plugin = tmp_path / "count", tmp_path / "plugin.py"
    count.write_text("0")
    api_version = "client.authentication.k8s.io/v1"
    text = PLUGIN.replace("COUNT", repr(str(count))).replace("API", repr(api_version))
    plugin.write_text(text.replace("2020", "2999"))
    command = {"apiVersion": api_version, "command": sys.executable, "args": [str(plugin)]}
    guard = Guard("t1")
    async with served(tmp_path, guard.answer, exec=command) as api:
        assert (await api.ask("GET", "/")).status == 200
        guard.token = "t2"
        assert (await api.ask("GET", "/")).status == 200
    assert count.read_text() == "2"


USELESS = {
    "empty": "",
    "no text": "\0",
    "a list": "[]",
    "users of another kind": "users: [5]",
    "clusters of another kind": "clusters: 5",
    "a server that is none": "clusters: [{name: c, cluster: {server: 5}}]",
    "an authority that is none": "clusters: [{name: c, cluster: {server: 'https://h',"
    " certificate-authority-data: '!!!'}}]",
}


@pytest.mark.parametrize("said", USELESS.values(), ids=USELESS.keys())
async def test_a_kubeconfig_that_is_none_is_an_error_in_words(tmp_path: Path, said: str) -> None:
    whole = {
        "clusters": "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]",
        "users": "users: [{name: u, user: {token: t0ken}}]",
        "contexts": "contexts: [{name: x, context: {cluster: c, user: u}}]",
    }
    key, colon, _ = said.partition(":")
    parts = {**whole, key: said}.values() if colon else (said,)
    file = tmp_path / "kubeconfig"
    file.write_text("\n".join((*parts, "current-context: x")) if colon else said)
    with pytest.raises(OSError) as raised:
        await connected(Kubernetes(access="kubeconfig", kubeconfig=str(file)))
    assert "t0ken" not in str(raised.value) and str(raised.value)
