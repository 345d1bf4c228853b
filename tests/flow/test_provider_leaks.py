"""No provider's key, and nothing of a prompt, in logs, pages or what clients are told of faults.

Reads the bytes: the log of a coordinator at its chattiest, every page, and every answer.
"""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.children import child
from tests.fakes import FakeEngine, fake_engines
from tests.provider_scenes import CHAT, in_order, provider
from tests.provider_stubs import AWS, KEY, TOKEN, Stub, running
from tests.waiting import until

pytestmark = pytest.mark.flow

MARKER = "Zebrafish-quicksilver-marmalade"
CLIENTS = "sk-client-secret"
SECRETS = (KEY, *AWS, TOKEN, CLIENTS, MARKER)
CHATTY = f"the key {KEY} of this account may not see {MARKER}"
"""What a provider says of a refusal that it would better not have said."""

PAGES = ("pools", "policies", "decisions?limit=2000", "config", "engines")
OPEN = ("metrics", "readyz")


async def _ask_all(http: str, stubs: dict[str, Stub]) -> list[bytes]:
    """Ask for all that can go well or wrong, of each provider; return what clients got."""
    answers = []
    headers = {"authorization": f"Bearer {CLIENTS}", "x-api-key": CLIENTS, "cookie": CLIENTS}
    body: dict[str, Any] = CHAT | {"messages": [{"role": "user", "content": MARKER}]}
    async with aiohttp.ClientSession(headers=headers) as client:
        for stub in stubs.values():
            for status, cut in ((200, None), (200, 1), (200, 4), (500, None), (401, None)):
                stub.status, stub.cut_after, stub.says = status, cut, CHATTY
                for path in ("/v1/chat/completions", "/v1/messages"):
                    for stream in (True, False):
                        asked = body | {"stream": stream}
                        async with client.post(http + path, json=asked) as answer:
                            try:
                                answers.append(await answer.read())
                            except aiohttp.ClientPayloadError:
                                continue
            await stub.stop()
            async with client.post(http + "/v1/chat/completions", json=body) as answer:
                answers.append(await answer.read())
    return answers


async def test_no_key_gets_anywhere(tmp_path: Path) -> None:
    stubs = {type_.lower(): Stub(type_) for type_ in ("OpenAI", "AzureOpenAI", "Anthropic")}
    stubs["bedrock"] = Stub("Bedrock", token=TOKEN)
    folder = tmp_path / "resources"
    folder.mkdir()
    async with fake_engines(FakeEngine()) as (engine,), running(*stubs.values()):
        for name, stub in stubs.items():
            (folder / f"{name}.yaml").write_text(provider(name, stub, tmp_path))
        with (tmp_path / "aws").open("a") as file:
            file.write(f"aws_session_token = {TOKEN}\n")
        (folder / "policy.yaml").write_text(in_order(*stubs)["first"])
        config = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0") | {
            "transport": "plaintext",
            "log_level": "debug",
            "engines": [{"url": engine.url}],
            "resources": str(folder),
        }
        log = tmp_path / "log"
        async with child("coordinator", "coordinator.main", config=config, log=log) as here:
            answers = await _ask_all(f"http://{here.listening['http']}", stubs)

            async def is_told() -> bool:
                return b"provider cools down" in log.read_bytes()

            await until(is_told)
            places = {f"answer {number}": answer for number, answer in enumerate(answers)}
            admin = f"http://{here.listening['admin']}"
            async with aiohttp.ClientSession() as client:
                for page in (*(f"debug/{page}" for page in PAGES), *OPEN):
                    async with client.get(f"{admin}/{page}") as answer:
                        assert answer.status in (200, 503)
                        places[page] = await answer.read()
    places["log"] = log.read_bytes()
    assert all(stub.calls for stub in stubs.values())
    ends = {each["outcome"]["end"] for each in json.loads(places["debug/decisions?limit=2000"])}
    assert {"finished", "failed", "rejected"} <= ends
    found = {
        (place, secret)
        for place, what in places.items()
        for secret in SECRETS
        if secret.encode() in what
    }
    assert found == set()
