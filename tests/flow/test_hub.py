"""Tokenizers by name, from a hub that speaks as the real one does, on this machine."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import pytest

from coordinator.canonical import Api, Canonical, parse
from coordinator.engines import Engine, ServedModel
from coordinator.tokens.hub import Hub, Unfetched, is_name
from coordinator.tokens.hub import _fetched as fetched
from coordinator.tokens.loading import RELOAD_AFTER_S
from coordinator.tokens.sources import Tokens
from coordinator.tokens.tokenized import Tokenized, TokenState
from coordinator.tokens.tokenizer import Tokenizer
from lineside.ids import EngineId, GroupId, ModelName, NodeId
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.flow

MODEL = Path(__file__).parents[2] / "simulate" / "model"
NAME, COMMIT = "acme/tiny", "0123456789abcdef0123456789abcdef01234567"
EXTRA = {"model.safetensors": b"weights", "README.md": b"card"}


@dataclass
class FakeHub:
    """Serves one repository; `fault` is the header of the hub's error, if there is one."""

    url: str = ""
    fault: str = ""
    status: int = 404
    paths: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    @property
    def files(self) -> dict[str, bytes]:
        mine = {path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()}
        return mine | EXTRA


def handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.paths.append(self.path)
            hub.tokens.add(self.headers["authorization"])
            path, *_ = self.path.partition("?")
            files = hub.files
            if hub.fault:
                return self.answer(hub.status, b"{}", {"X-Error-Code": hub.fault})
            if path.startswith(f"/api/models/{NAME}/revision/"):
                names = [{"rfilename": name} for name in files]
                return self.answer(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": names}))
            if path.startswith(f"/api/models/{NAME}/tree/{COMMIT}"):
                tree = [
                    {"type": "file", "path": name, "size": len(content), "oid": tag(content)}
                    for name, content in files.items()
                ]
                return self.answer(200, json.dumps(tree))
            content = files[path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")]
            etag = {"ETag": f'"{tag(content)}"', "X-Repo-Commit": COMMIT}
            return self.answer(200, content, etag)

        do_HEAD = do_GET

        def answer(
            self, status: int, body: bytes | str, more: dict[str, str] | None = None
        ) -> None:
            content = body.encode() if isinstance(body, str) else body
            self.send_response(status)
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def tag(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    hub = FakeHub()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(hub)) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tokens(fake: FakeHub, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Tokens]:
    async with aiohttp.ClientSession() as http:
        tokens = Tokens(clock, http, 5.0, Hub(url=fake.url, cache=str(tmp_path)))
        yield tokens
        tokens.close()


def engine() -> Engine:
    return Engine(
        id=EngineId("a:1"),
        base_url="http://127.0.0.1:1",
        endpoint="a:1",
        group=GroupId("g"),
        models=(ServedModel(ModelName("m")),),
        node=NodeId("n"),
        tokenizer=NAME,
    )


def hello() -> Canonical:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    canonical = parse(Api.OPENAI_CHAT, {}, json.dumps(body).encode())
    assert isinstance(canonical, Canonical)
    return canonical


@pytest.mark.parametrize(
    ("source", "named"),
    [
        pytest.param("acme/tiny", True, id="a name"),
        pytest.param("acme/tiny-2.5_b@refs/pr/1", True, id="with a revision"),
        pytest.param("/models/tiny", False, id="a path"),
        pytest.param("tiny", False, id="a name without its owner"),
        pytest.param("../acme", False, id="a relative path"),
        pytest.param("a/b/c", False, id="a longer path"),
        pytest.param("acme/tiny --x", False, id="more than a name"),
        pytest.param("acme/tiny--x", False, id="two dashes, which hubs keep to themselves"),
        pytest.param("acme/tiny..x", False, id="two dots"),
        pytest.param("acme/tiny-", False, id="a dash at the end"),
        pytest.param("acme/tiny.git", False, id="the end of a repository's address"),
        pytest.param("acme/tïny", False, id="letters that are not ASCII"),
        pytest.param("acme/" + "x" * 92, False, id="too long"),
    ],
)
def test_names_are_told_from_paths(source: str, named: bool) -> None:
    assert is_name(source) is named


async def test_a_tokenizer_is_fetched_by_name_while_requests_go_on(
    tokens: Tokens, fake: FakeHub, tmp_path: Path
) -> None:
    first = await tokens.of(hello(), [engine()])
    assert first == Tokenized(TokenState.UNKNOWN, "engine_error"), "nothing waits for a hub"
    assert [state.state for state in tokens.sources()] == ["loading"]
    assert isinstance(await tokens.load(NAME), Tokenizer)
    then = await tokens.of(hello(), [engine()])
    ids = Tokenizer.load(str(MODEL)).tokens(hello())
    assert then == Tokenized(TokenState.EXACT, "unverified", ids, len(ids) // 4)
    assert not any(name in path for path in fake.paths for name in EXTRA), "weights stay there"
    assert names_below(tmp_path) == {
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def names_below(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("snapshots/*/*")}


def test_what_was_fetched_outlives_the_hub(fake: FakeHub, tmp_path: Path) -> None:
    asked = (f"{NAME}@v1", fake.url, str(tmp_path), "hf_secret")
    answer = fetched(*asked)
    assert Path(answer["directory"], "tokenizer.json").is_file()
    assert fake.tokens == {"Bearer hf_secret"}
    fake.fault, fake.status = "Down", 503
    assert fetched(*asked) == answer


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        pytest.param("RepoNotFound", 404, "the hub knows no `acme/tiny`", id="unknown"),
        pytest.param("GatedRepo", 403, "only to those with access", id="gated"),
        pytest.param("RevisionNotFound", 404, "no such revision", id="no such revision"),
        pytest.param("Down", 503, "did not give `acme/tiny`, and the cache lacks it", id="down"),
    ],
)
def test_a_hub_that_gives_nothing_is_named(
    fake: FakeHub, tmp_path: Path, fault: str, status: int, said: str
) -> None:
    fake.fault, fake.status = fault, status
    assert said in fetched(NAME, fake.url, str(tmp_path), None)["error"]


def test_a_hub_that_is_not_there_is_named(tmp_path: Path) -> None:
    answer = fetched(NAME, "http://127.0.0.1:9", str(tmp_path), None)
    assert answer == {
        "error": "the hub did not give `acme/tiny`, and the cache lacks it: ConnectError"
    }


class DownAtFirst(Hub):
    """Gives nothing at first, then a directory on this machine."""

    asked = 0

    def fetch(self, name: str) -> str:
        DownAtFirst.asked += 1
        if DownAtFirst.asked == 1:
            raise Unfetched("the hub is down")
        return str(MODEL)


async def test_what_the_hub_did_not_give_is_asked_for_again(clock: ManualClock) -> None:
    async with aiohttp.ClientSession() as http:
        tokens = Tokens(clock, http, 5.0, DownAtFirst())
        assert str(await tokens.load(NAME)) == "the hub is down"
        assert tokens.sources()[0].error == "the hub is down"
        await clock.advance(RELOAD_AFTER_S + 1)
        assert isinstance(await tokens.load(NAME), Tokenizer)
        tokens.close()


async def test_closing_breaks_off_what_is_being_fetched(fake: FakeHub, tmp_path: Path) -> None:
    hub = Hub(url=fake.url, cache=str(tmp_path))
    hub.close()  # as if in the moment in which the child starts
    with pytest.raises(Unfetched, match="broken off"):
        await asyncio.to_thread(hub.fetch, NAME)


def test_fetching_can_be_switched_off() -> None:
    with pytest.raises(Unfetched, match="switched off"):
        Hub(fetches=False).fetch(NAME)
