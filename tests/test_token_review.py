"""Agents' ServiceAccount tokens, judged by a scripted API server."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.trust.proof import Denied, Shown, Why
from coordinator.trust.token_review import (
    AT_ONCE,
    BAD_S,
    GOOD_S,
    MOST_KEPT,
    PATH,
    STALE_S,
    CannotAsk,
    TokenReview,
)
from lineside.ids import NodeId
from tests.manual_clock import ManualClock

NODE = NodeId("gpu-1")
NODE_NAME = "authentication.kubernetes.io/node-name"


def good(**other: Any) -> dict[str, Any]:
    user = {"username": "system:serviceaccount:lineside:agent", "extra": {NODE_NAME: [NODE]}}
    return {"authenticated": True, "audiences": ["lineside"], "user": user, **other}


@dataclass
class Api:
    """Answers with a status, or fails; keeps what it was asked."""

    status: dict[str, Any] = field(default_factory=good)
    away: str = ""
    body: bytes | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def create(self, path: str, document: Mapping[str, Any]) -> bytes:
        assert path == PATH
        self.asked.append(json.loads(json.dumps(document)))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.away:
            raise CannotAsk(self.away)
        return self.body or json.dumps({"kind": "TokenReview", "status": self.status}).encode()


@dataclass
class Bench:
    api: Api = field(default_factory=Api)
    clock: ManualClock = field(default_factory=ManualClock)
    needs_node: bool = True

    def __post_init__(self) -> None:
        self.review = TokenReview(
            self.api, ["lineside/agent"], "lineside", self.clock, needs_node=self.needs_node
        )

    async def judge(self, token: str = "t", node: NodeId = NODE) -> Denied | None:
        return await self.review.judge(Shown(f"Bearer {token}"), node)


async def test_a_bound_token_speaks_for_its_node() -> None:
    bench = Bench()
    assert await bench.judge() is None
    (asked,) = bench.api.asked
    assert asked["spec"] == {"token": "t", "audiences": ["lineside"]}


USER = good()["user"]


@pytest.mark.parametrize(
    ("status", "why", "text"),
    [
        pytest.param(
            good(authenticated=False, error="secret words"),
            Why.UNKNOWN,
            "the API server does not accept the agent's token",
            id="not authenticated",
        ),
        pytest.param(
            good(audiences=["https://kubernetes.default.svc"]),
            Why.UNKNOWN,
            "it is not made for audience `lineside`",
            id="another audience",
        ),
        pytest.param(good(audiences=[]), Why.UNKNOWN, "audience `lineside`", id="no audience"),
        pytest.param(
            good(user={**USER, "username": "system:serviceaccount:other:agent"}),
            Why.UNKNOWN,
            "the token is of ServiceAccount `other/agent`, which is none of",
            id="another account",
        ),
        pytest.param(
            good(user={**USER, "username": "jane"}),
            Why.UNKNOWN,
            "the agent's token is of no ServiceAccount",
            id="a person",
        ),
        pytest.param(
            good(user={**USER, "extra": {NODE_NAME: ["gpu-2"]}}),
            Why.NOT_ITS_NODE,
            "the agent's token is of node `gpu-2`, and it speaks for `gpu-1`",
            id="another node",
        ),
        pytest.param(
            good(user={**USER, "extra": {}}),
            Why.NOT_ITS_NODE,
            "the agent's token names no node, as clusters before Kubernetes 1.30 make them",
            id="an old cluster",
        ),
    ],
)
async def test_a_token_that_proves_less_is_refused(
    status: dict[str, Any], why: Why, text: str
) -> None:
    denied = await Bench(Api(status)).judge()
    assert denied is not None and denied.why is why
    assert text in denied.text and "secret" not in denied.text


async def test_an_old_cluster_may_be_taken_at_its_word() -> None:
    old = Api(good(user={**USER, "extra": {}}))
    assert await Bench(old, needs_node=False).judge() is None
    other = Bench(Api(good(user={**USER, "extra": {NODE_NAME: ["x"]}})), needs_node=False)
    denied = await other.judge()
    assert denied is not None and denied.why is Why.NOT_ITS_NODE


async def test_a_stream_without_a_token_asks_nobody() -> None:
    bench = Bench()
    for sent in ("", "Bearer ", "Basic x", "Bearer " + "x" * 20_000):
        denied = await bench.review.judge(Shown(sent), NODE)
        assert denied is not None and denied.why is Why.UNKNOWN
    assert bench.api.asked == []


async def test_answers_are_kept_for_a_while_good_ones_longer() -> None:
    bench = Bench()
    for _ in range(3):
        assert await bench.judge() is None
    await bench.clock.advance(GOOD_S - 0.1)
    assert await bench.judge() is None
    assert len(bench.api.asked) == 1
    await bench.clock.advance(0.2)
    bench.api.status = good(authenticated=False)
    assert await bench.judge() is not None  # its pod is gone
    await bench.clock.advance(BAD_S - 0.1)
    assert await bench.judge() is not None
    assert len(bench.api.asked) == 2
    await bench.clock.advance(0.2)
    bench.api.status = good()
    assert await bench.judge() is None


async def test_while_the_api_server_is_away_known_tokens_count_and_others_wait() -> None:
    bench = Bench()
    assert await bench.judge("known") is None
    await bench.clock.advance(GOOD_S + 1)
    bench.api.away = "it answers 503"
    assert await bench.judge("known") is None
    assert bench.review.away == "it answers 503"
    denied = await bench.judge("new")
    assert denied == Denied(
        Why.CANNOT_TELL, "the API server cannot be asked about the agent's token: it answers 503"
    )
    await bench.clock.advance(STALE_S)
    denied = await bench.judge("known")
    assert denied is not None and denied.why is Why.CANNOT_TELL
    bench.api.away = ""
    assert await bench.judge("known") is None
    assert bench.review.away == ""


@pytest.mark.parametrize("body", [b"<html>", b"null", b'{"a":' + b"[" * 5_000])
async def test_an_answer_that_is_none_is_no_answer(body: bytes) -> None:
    denied = await Bench(Api(body=body)).judge()
    assert denied is not None and denied.why is Why.CANNOT_TELL
    assert "its answer is no TokenReview" in denied.text


async def test_agents_that_come_all_at_once_are_asked_for_a_few_at_a_time() -> None:
    bench = Bench()
    judged = await asyncio.gather(*(bench.judge(str(n % 50)) for n in range(200)))
    assert judged == [None] * 200
    assert len(bench.api.asked) == 50  # each token once
    assert bench.api.most_at_once == AT_ONCE


async def test_what_is_kept_is_bounded_and_holds_no_token() -> None:
    bench = Bench()
    for n in range(MOST_KEPT + 10):
        await bench.judge(f"hunter{n}")
    assert len(bench.review._kept) == MOST_KEPT
    assert "hunter" not in repr(bench.review._kept)
