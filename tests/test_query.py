"""The routing query: what a gateway is told, and what it is not."""

import gc
import json
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any, cast

import msgspec
import pytest

from coordinator.apis import Api
from coordinator.candidates import Candidate, Provider
from coordinator.cluster import Cluster
from coordinator.doors.holding import Holding
from coordinator.doors.listing import Listing
from coordinator.doors.query import Answered, Countable, Queries, Query, Refused, Told
from coordinator.doors.reports import Reports
from coordinator.engines import Engine
from coordinator.providers.bars import Bar, bars
from coordinator.providers.cooldowns import Cooldowns
from coordinator.providers.dialects import Dialect
from coordinator.service import Service
from coordinator.targets import Layout
from lineside.ids import EngineId, TenantId
from policies.facts import Inventory
from tests.manual_clock import ManualClock
from tests.test_service import PROMPT, engine
from tests.test_watch import watched

BODY = {"model": "m", "prompt": PROMPT, "max_tokens": 7}
HEADERS = (("Authorization", "Bearer c"), ("cookie", "a=b"), ("X-Request-ID", "req-1"))


def keys(candidate: Candidate, url: str, body: bytes) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{candidate.target.id}", "x-seen": url}


NOTHING_HELD = Holding(Cluster(), ManualClock(), cast(Any, None))
"""No query here goes on from a stored response."""


def queries(*engines: Engine, limit: int = 10_000) -> Queries:
    service, _ = watched(*engines)
    return Queries(service, Reports(service, 60.0), limit, keys, NOTHING_HELD, Listing(service))


def query(body: dict[str, Any] | bytes = BODY, **changes: Any) -> Query:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return msgspec.structs.replace(Query("POST", "/v1/completions", HEADERS, raw), **changes)


async def answered(of: Queries, asked: Query) -> Answered:
    answer = await of.ask(asked)
    assert isinstance(answer, Answered), answer
    return answer


async def refused(of: Queries, asked: Query) -> Refused:
    answer = await of.ask(asked)
    assert isinstance(answer, Refused)
    return answer


async def test_an_answer_says_where_and_how() -> None:
    of = queries(replace(engine("a"), rank=3))
    answer = await answered(of, query(path="/v1/completions?x=1"))
    (only,) = answer.offers
    assert only.url == "http://a/v1/completions?x=1"
    assert dict(only.set_headers) == {
        "x-request-id": "req-1",
        "x-lineside-decision": answer.decision_id,
        "x-data-parallel-rank": "3",
        "content-type": "application/json",
    }
    assert list(only.remove_headers) == [
        "api-key", "authorization", "cookie", "proxy-authorization", "x-api-key",
        "x-vllm-priority",
    ]  # fmt: skip
    assert json.loads(only.body) == BODY
    assert len(of.reports) == 1


async def test_what_only_we_may_say_is_removed_from_what_the_client_sent() -> None:
    sent = (("x-lineside-tags", "a"), ("X-Data-Parallel-Rank", "1"), ("content-type", _JSON))
    answer = await answered(queries(engine("a")), query(headers=sent))
    assert [name for name in answer.offers[0].remove_headers if name.startswith("x-")] == [
        "x-api-key", "x-data-parallel-rank", "x-lineside-tags", "x-vllm-priority",
    ]  # fmt: skip
    assert "content-type" not in dict(answer.offers[0].set_headers)


_JSON = "application/json; charset=utf-8"


async def test_fallbacks_come_in_order_with_bodies_of_their_own() -> None:
    of = queries(*map(engine, "abcd"))
    answer = await answered(of, query(BODY | {"stream": True}))
    ids = [each.candidate.target.id for each in answer.offers]
    decision = answer.routed.record.decision
    assert decision is not None
    assert ids == [each.target.id for each in decision.ranked[:3]]
    bodies = [json.loads(each.body) for each in answer.offers]
    assert bodies == [BODY | {"stream": True, "stream_options": {"include_usage": True}}] * 3
    assert len((await answered(of, query(fallbacks=0))).offers) == 1


async def test_credentials_are_given_only_where_they_are_asked_for() -> None:
    of = queries(engine("a"))
    plain = (await answered(of, query())).offers[0]
    assert "authorization" not in dict(plain.set_headers)
    given = (await answered(of, query(wants_keys=True))).offers[0]
    assert dict(given.set_headers)["authorization"] == "Bearer key-of-a"
    assert dict(given.set_headers)["x-seen"] == given.url
    assert "authorization" not in given.remove_headers


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        pytest.param({"a:1"}, ["a:1"], id="an endpoint"),
        pytest.param({"b"}, ["b:1", "b:2"], id="a host with all its ports"),
        pytest.param({"b:2", "elsewhere:9"}, ["b:2"], id="others are unknown"),
    ],
)
async def test_a_subset_is_all_there_is_to_choose_from(
    subset: set[str], expected: list[str]
) -> None:
    of = queries(*map(engine, ("a:1", "b:1", "b:2")))
    answer = await answered(of, query(subset=frozenset(subset)))
    assert sorted(each.candidate.target.id for each in answer.offers) == expected
    shown = answer.routed.record.to_json()["candidates"]
    dropped = {c["id"]: (c["dropped_by"], c["reason"]) for c in shown if c["dropped_by"]}
    others = {"a:1", "b:1", "b:2"} - set(expected)
    assert dropped == dict.fromkeys(others, ("subset", "not in the subset to choose from"))


@pytest.mark.parametrize("subset", [frozenset(), frozenset({"c:1"})], ids=["empty", "no match"])
async def test_a_subset_without_an_engine_is_refused(subset: frozenset[str]) -> None:
    answer = await refused(queries(engine("a:1")), query(subset=subset))
    assert (answer.status, answer.reason) == (503, "nothing_in_subset")
    assert dict(answer.headers)["retry-after"] == "1"


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        pytest.param({"method": "GET"}, 405, "method_not_allowed", id="a method"),
        pytest.param({"path": "/v2/x"}, 404, "not_found", id="a path"),
        pytest.param({"body": b"{"}, 400, "bad_request", id="a body"),
        pytest.param({"body": b" " * 10_001}, 413, "body_too_large", id="a size"),
        pytest.param({"headers": [("content-type", "text/x")]}, 400, "bad_request", id="a kind"),
        pytest.param({"body": b'{"model":"x","prompt":"y"}'}, 404, "unknown_model", id="a model"),
    ],
)
async def test_what_cannot_be_routed_is_answered_in_the_clients_words(
    asked: dict[str, Any], status: int, reason: str
) -> None:
    of = queries(engine("a"))
    answer = await refused(of, query(**asked))
    assert (answer.status, answer.reason) == (status, reason)
    headers = dict(answer.headers)
    assert headers["content-type"] == "application/json"
    assert headers["x-lineside-decision"] == answer.decision_id
    assert json.loads(answer.body)["error"]["code"] == status
    assert len(of.reports) == 0
    record = of._service.records.get(answer.decision_id)
    assert record is not None and record.outcome.status == status


async def test_anthropic_clients_are_refused_in_anthropics_shape() -> None:
    answer = await refused(queries(engine("a")), query(b"[]", path="/v1/messages"))
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "the body must be a JSON object",
        },
        "request_id": "req-1",
    }
    assert dict(answer.headers)["request-id"] == "req-1"


COUNT = "/v1/messages/count_tokens"
MESSAGE = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        pytest.param({}, {"object": "list", "data": ["m"]}, id="all, for OpenAI's clients"),
        pytest.param({"path": "/v1/models/m"}, {"object": "model", "id": "m"}, id="one"),
        pytest.param(
            {"headers": (("Anthropic-Version", "1"),)},
            {"has_more": False, "data": ["m"]},
            id="all, for Anthropic's",
        ),
    ],
)
async def test_models_are_listed_without_a_backend(
    changes: dict[str, Any], shown: dict[str, Any]
) -> None:
    asked = query(b"", **{"method": "GET", "path": "/v1/models"} | changes)
    told = await queries(engine("a")).answer(asked)
    assert isinstance(told, Told)
    said = json.loads(told.body)
    if "data" in said:
        said["data"] = [each["id"] for each in said["data"]]
    assert {name: said[name] for name in shown} == shown
    assert dict(told.headers)["content-type"] == "application/json"
    assert told.decision_id == ""


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        pytest.param({"path": "/v1/models/x"}, 404, "unknown_model", id="no such model"),
        pytest.param({"method": "POST"}, 405, "method_not_allowed", id="POST"),
        pytest.param({"path": COUNT}, 405, "method_not_allowed", id="GET of a count"),
        pytest.param(
            {"path": COUNT, "method": "POST", "body": b"{}"}, 400, "bad_request", id="no message"
        ),
        pytest.param({"path": "/v1/else", "method": "POST"}, 404, "not_found", id="another path"),
    ],
)
async def test_what_cannot_be_listed_or_counted_is_refused(
    changes: dict[str, Any], status: int, reason: str
) -> None:
    raw = changes.pop("body", b"")
    asked = query(raw, **{"method": "GET", "path": "/v1/models"} | changes)
    answer = await queries(engine("a")).answer(asked)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.reason) == (status, reason)


async def test_counts_go_to_engines_and_are_accounted_nowhere() -> None:
    of = queries(*map(engine, "abcd"))
    answer = await of.answer(query(MESSAGE | {"priority": 3}, path=COUNT))
    assert isinstance(answer, Countable)
    assert answer.decision_id == ""
    assert len(answer.offers) == 2
    first = answer.offers[0]
    assert first.url == f"http://{first.candidate.target.id}{COUNT}"
    assert json.loads(first.body) == MESSAGE
    assert "x-lineside-decision" not in dict(first.set_headers)
    assert (len(of.reports), of._service.inflight.outstanding) == (0, 0)
    assert of._service.records.latest() == []
    only = await of.answer(query(MESSAGE, path=COUNT, subset=frozenset({"c"})))
    assert isinstance(only, Countable)
    assert [each.candidate.target.id for each in only.offers] == ["c"]


async def test_counts_are_ours_where_no_engine_may_count() -> None:
    asked = query(MESSAGE, path=COUNT, subset=frozenset({"elsewhere"}))
    told = await queries(engine("a")).answer(asked)
    assert isinstance(told, Told)
    assert json.loads(told.body) == {"input_tokens": len(PROMPT)}


async def test_generating_is_answered_as_ever() -> None:
    assert isinstance(await queries(engine("a")).answer(query()), Answered)


async def test_nothing_is_decided_while_draining() -> None:
    of = queries(engine("a"))
    of._service.draining = True
    assert (await refused(of, query())).reason == "draining"


async def test_a_fault_ends_its_query_and_leaves_nothing_behind() -> None:
    def broken(candidate: Candidate, url: str, body: bytes) -> dict[str, str]:
        raise ZeroDivisionError

    service, _ = watched(engine("a"))
    of = Queries(service, Reports(service, 60.0), 10_000, broken, NOTHING_HELD, Listing(service))
    answer = await refused(of, query(wants_keys=True))
    assert (answer.status, answer.reason) == (500, "fault")
    assert (len(of.reports), service.inflight.outstanding) == (0, 0)


async def test_the_tenant_is_the_one_that_the_door_vouches_for() -> None:
    answer = await answered(queries(engine("a")), query(tenant=TenantId("blue")))
    assert answer.routed.record.tenant == "blue"


async def test_what_was_answered_lets_go_of_the_prompt() -> None:
    answer = await answered(queries(engine("a")), query(BODY | {"stream": True}))
    request, seen = answer.routed.request, answer.routed.seen
    assert (request.raw, request.body, request.prompts) == (b"", {}, (b"",))
    assert seen is not None and seen.tokenized.packed is None
    assert seen.load_tokens(answer.routed.candidate.model) == len(PROMPT)
    assert answer.routed.target.id == EngineId("a")


async def test_nothing_that_is_kept_of_a_decision_holds_the_prompt() -> None:
    text = "a prompt that nobody may find " * 9
    of = queries(engine("a"), engine("b"))
    answer = await answered(of, query(BODY | {"prompt": [text]}))
    assert text in answer.offers[0].body.decode()  # where it belongs
    found = [each for each in _reachable(answer.routed) if text.encode() in _plain(each)]
    assert found == []


def _reachable(root: object) -> list[object]:
    """Return all data that hangs from an object: what stays in memory as long as it does."""
    found, left = {id(root): root}, [root]
    while left:
        for each in gc.get_referents(left.pop()):
            if id(each) not in found and not isinstance(each, _SHARED):
                found[id(each)] = each
                left.append(each)
    return list(found.values())


_SHARED = (type, ModuleType, FunctionType, Service)
"""What no request owns."""


def _plain(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""


def test_a_provider_of_another_api_is_barred_from_who_does_not_translate() -> None:
    spoken = Provider(EngineId("a"), "http://a", "a")
    foreign = Provider(EngineId("b"), "http://b", "b", dialect=Dialect("Anthropic", ANTHROPIC))
    layout = Layout(Inventory((), {}), [spoken, foreign], {})

    def barred(translates: bool) -> dict[int, Bar]:
        return bars(layout, (0, 1), Api.OPENAI_CHAT, Cooldowns(), 0.0, translates)

    assert barred(True) == {}
    why = "it does not speak `openai-chat`, and the asking gateway does not translate"
    assert barred(False) == {1: Bar("api", why, is_certain=True)}


ANTHROPIC = frozenset({Api.ANTHROPIC_MESSAGES})
