"""The doctor's way to an API server: what it makes of answers, and of none."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from cli.kube.api import Unreachable
from cli.kube.server import Server, opened
from coordinator.kube.api import JSON, Answer, ApiAway, Body, Query


class Fixed:
    """Gives one answer to everything."""

    def __init__(self, answer: Answer | ApiAway) -> None:
        self.answer = answer

    async def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Body | None = None,
        content_type: str = JSON,
    ) -> Answer:
        if isinstance(self.answer, ApiAway):
            raise self.answer
        return self.answer

    def watch(self, path: str, query: Query, idle_s: float) -> AsyncGenerator[bytes, None]:
        raise AssertionError("the doctor watches nothing")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("body", "read"), [(b'{"a": 1}', {"a": 1}), (b"# HELP x\n", "# HELP x\n"), (b"\xff", "\ufffd")]
)
async def test_an_answer_is_read_as_json_or_text(body: bytes, read: Any) -> None:
    answer = await Server(Fixed(Answer(200, body))).get("/x")
    assert (answer.status, answer.body) == (200, read)
    assert answer.at[0] <= answer.at[1]


async def test_credentials_that_are_not_known_end_the_doctor() -> None:
    with pytest.raises(Unreachable, match="does not know these credentials"):
        await Server(Fixed(Answer(401, b"{}"))).get("/x")


async def test_a_process_that_hangs_is_none_that_answers() -> None:
    away = Server(Fixed(ApiAway("no answer in time")))
    assert (await away.get("/api/v1/namespaces/n/pods/p:1/proxy/metrics")).status == 504
    with pytest.raises(Unreachable, match="cannot reach the API server: no answer in time"):
        await away.get("/version")


@pytest.mark.parametrize(
    ("text", "context"),
    [
        pytest.param(None, None, id="no file"),
        pytest.param("a: [", None, id="no YAML"),
        pytest.param("[]", None, id="no kubeconfig"),
        pytest.param(json.dumps({"kind": "Config", "contexts": []}), "far", id="no such context"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_said(
    tmp_path: Path, text: str | None, context: str | None
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Unreachable):
        async with opened(str(file), context):
            raise AssertionError("nothing to ask")
