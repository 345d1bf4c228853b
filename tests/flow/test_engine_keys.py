"""Engines that were started with a key: it is on every request to them, and nowhere else."""

import json
from pathlib import Path

import pytest

from coordinator.config import EngineSpec
from tests.fakes import MODEL, FakeEngine, fake_engines
from tests.gateways import coordinator
from tests.waiting import until

pytestmark = pytest.mark.flow

PATH = "/v1/chat/completions"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
KEY, NEW_KEY = "sk-first-secret", "sk-second-secret"


async def test_the_key_opens_the_engine_and_is_shown_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    async with (
        fake_engines(FakeEngine(key=KEY), FakeEngine()) as (locked, other),
        coordinator(
            EngineSpec(url=locked.url, api_key_file=str(file)), EngineSpec(url=other.url)
        ) as running,
    ):
        theirs = {"authorization": "Bearer the-clients-own"}
        for stream in (False, True) * 4:
            status, headers, _ = await running.post(PATH, CHAT | {"stream": stream}, theirs)
            assert status == 200
            assert (await running.record(headers))["tokens"] == "engine"  # it tokenizes, too
        sent = [request.headers.get("authorization") for request in locked.requests]
        assert set(sent) == {f"Bearer {KEY}"}
        assert not any("authorization" in request.headers for request in other.requests)
        shown = [
            json.dumps(await running.debug(page))
            for page in ("/debug/config", "/debug/engines", "/debug/decisions", "/debug/index")
        ]
        assert str(file) in shown[0]
        assert not any(KEY in page for page in shown)
    assert KEY not in caplog.text


async def test_a_changed_key_counts_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    async with (
        fake_engines(FakeEngine(key=KEY)) as (engine,),
        coordinator(EngineSpec(url=engine.url, api_key_file=str(file))) as running,
    ):
        engine.key = NEW_KEY
        status, headers, body = await running.post(PATH, CHAT)
        if status == 502:  # not a 401, which would be about the client's key
            assert "key" in json.loads(body)["error"]["message"]
            assert (await running.record(headers))["refusal"]["reason"] == "upstream_error"

        async def said() -> bool:
            (shown,) = await running.debug("/debug/engines")
            return bool(shown["reason"] == "it does not accept the key in `api_key_file`")

        await until(said)
        file.write_text(NEW_KEY)
        await until(running.ready)
        assert (await running.post(PATH, CHAT))[0] == 200
        file.unlink()  # the last key stays in force
        assert (await running.post(PATH, CHAT))[0] == 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="no file"),
        pytest.param(b"", "must hold one key", id="empty"),
        pytest.param(b"two words", "must hold one key", id="two words"),
        pytest.param(b"k" * 5000, "must hold one key", id="too long"),
        pytest.param(b"wrong", "does not accept the key", id="another key"),
    ],
)
async def test_what_is_wrong_with_a_key_is_said(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    async with (
        fake_engines(FakeEngine(key=KEY)) as (engine,),
        coordinator(EngineSpec(url=engine.url, api_key_file=str(file))) as running,
    ):
        (shown,) = await running.debug("/debug/engines")
        assert shown["away"]
        assert reason in shown["reason"]


async def test_a_missing_key_is_said() -> None:
    async with (
        fake_engines(FakeEngine(key=KEY)) as (engine,),
        coordinator(EngineSpec(url=engine.url)) as running,
    ):
        (shown,) = await running.debug("/debug/engines")
        assert shown["reason"] == "it wants a key: name its `api_key_file`"
