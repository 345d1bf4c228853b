"""Who a request can be put to, and what backends refuse in it."""

import json
from collections.abc import Sequence
from typing import Any

from coordinator.apis import Api
from coordinator.bodies import Bodies
from coordinator.candidates import Candidate, Provider
from coordinator.canonical import BadRequest, Canonical, parse
from coordinator.cluster import Cluster
from coordinator.engines import EngineView
from coordinator.providers.dialects import Dialect
from coordinator.records import Record
from lineside.ids import EngineId, ModelName, TenantId
from policies.model import SetFields
from tests.test_service import engine

M = ModelName("m")
CLAUDE = Dialect("Anthropic", frozenset({Api.ANTHROPIC_MESSAGES}))


def chat(**fields: Any) -> Canonical:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    read = parse(Api.OPENAI_CHAT, {}, json.dumps(body).encode())
    assert isinstance(read, Canonical)
    return read


def provider(name: str, dialect: Dialect) -> Candidate:
    return Candidate(Provider(EngineId(name), "http://p", "p", {M: f"{name}-1"}, dialect), M)


def view(name: str) -> EngineView:
    cluster = Cluster()
    cluster.assign([engine(name)])
    return cluster.snapshot(0.0).engines[0]


def first(
    request: Canonical,
    candidates: Sequence[Candidate],
    bodies: Bodies | None = None,
    announces: bool = False,
    asked: SetFields | None = None,
) -> tuple[Any, Record]:
    record = Record(id="d", at=0.0, request_id="r", tenant=TenantId("t"))
    found = (bodies or Bodies()).first(
        request, candidates, asked, record, lambda _: announces, 100.0
    )
    return found, record


def test_the_first_that_can_take_it_gets_its_own_body() -> None:
    gpt, claude = provider("gpt", Dialect()), provider("claude", CLAUDE)
    (found, body), record = first(chat(n=2), [claude, gpt, Candidate(engine("a"), M)])
    assert found is gpt
    assert json.loads(body) == json.loads(chat(n=2).raw) | {"model": "gpt-1"}
    assert list(record.passed_over) == ["claude"]
    assert "`n`" in record.passed_over[EngineId("claude")]


def test_where_nobody_can_the_first_reason_is_the_clients() -> None:
    found, record = first(chat(n=2), [provider("one", CLAUDE), provider("two", CLAUDE)])
    assert found == BadRequest(record.passed_over[EngineId("one")], "n")
    assert list(record.passed_over) == ["one", "two"]
    assert first(chat(), []) == (None, first(chat(), [])[1])


def test_usage_is_asked_for_unless_the_backend_has_refused_it_lately() -> None:
    bodies, request = Bodies(), chat(stream=True)
    gpt, other = provider("gpt", Dialect()), provider("other", Dialect())
    bodies.capabilities.refused_usage(EngineId("gpt"), 100.0)
    assert b"include_usage" not in first(request, [gpt], bodies)[0][1]
    assert b"include_usage" in first(request, [other], bodies)[0][1]
    again = bodies.unmetered(request, other, None)
    assert again is not None
    assert b"include_usage" not in again


def test_an_engine_that_is_looked_at_may_be_asked_to_announce() -> None:
    seen, unseen = Candidate(engine("a"), M, view("a")), Candidate(engine("a"), M)
    assert b"kv_cache_report_mode" in first(chat(), [seen], announces=True)[0][1]
    assert b"kv_cache_report_mode" not in first(chat(), [seen])[0][1]
    assert b"kv_cache_report_mode" not in first(chat(), [unseen], announces=True)[0][1]


def test_gateways_are_given_all_that_can_take_it_and_nobody_announces() -> None:
    local, claude = Candidate(engine("a"), M, view("a")), provider("claude", CLAUDE)
    gpt = provider("gpt", Dialect())
    asked = SetFields(max_tokens=3)
    found = list(Bodies().each(chat(n=2), [local, claude, gpt], asked))
    assert [candidate for candidate, _ in found] == [local, gpt]
    for _, body in found:
        assert json.loads(body)["max_tokens"] == 3
        assert b"kv_cache_report_mode" not in body
