"""What the Envoy door is told by the coordinator: where, for whom, and what becomes of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from coordinator.cluster import Cluster
from coordinator.doors.callers import Caller
from coordinator.doors.envoy import contract
from coordinator.doors.envoy.addresses import Addresses
from coordinator.doors.envoy.desk import Books, Desk, Wishes
from coordinator.doors.envoy.exchange import Terms
from coordinator.doors.envoy.following import Interest
from coordinator.doors.envoy.messages import (
    Aborted,
    Finished,
    FirstToken,
    Note,
    Picked,
    Question,
    Rejected,
    Served,
    Unseen,
)
from coordinator.doors.listing import Listing
from coordinator.doors.query import Queries
from coordinator.doors.reports import Reports
from coordinator.engines import Engine
from coordinator.limits import Usage
from coordinator.records import Record
from coordinator.watch import WatchedService
from lineside.ids import EngineId, ModelName
from tests.manual_clock import ManualClock
from tests.test_query import NOTHING_HELD, keys
from tests.test_service import PROMPT, engine
from tests.test_watch import watched

BODY = {"model": "m", "prompt": PROMPT, "max_tokens": 7}
KNOWN = Caller("edge", is_gateway=True, wants_keys=False)
UNKNOWN = Caller("envoy", is_gateway=False)


class Named(Addresses):
    """Knows what gateways call each engine; others have no address."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(Cluster(), ManualClock())
        self._told = names

    def told(self, endpoint: str) -> str | None:
        return self._told.get(endpoint)

    def named(self, address: str) -> str:
        return next((own for own, told in self._told.items() if told == address), address)

    def within(self, subset: frozenset[str] | None) -> frozenset[str] | None:
        if subset is None:
            return None
        return subset | {o for o, told in self._told.items() if contract.allows(subset, told)}

    def unknown(self) -> Mapping[str, str]:
        return {name: "no such name" for name in "ab" if name not in self._told}


@dataclass
class Room:
    """A desk before a real service."""

    desk: Desk
    books: Books
    service: WatchedService

    async def picked(self, question: Question) -> Picked:
        answer = await self.desk.ask(question)
        assert isinstance(answer, Picked), answer
        return answer

    async def rejected(self, question: Question) -> Rejected:
        answer = await self.desk.ask(question)
        assert isinstance(answer, Rejected)
        return answer

    def outstanding(self, name: str) -> int:
        now = self.service.clock.monotonic()
        return self.service.inflight.queue(EngineId(name), now).outstanding

    @property
    def latest(self) -> Record:
        return self.service.records.latest(limit=1)[0]

    def outcome(self, picked: Picked) -> Any:
        assert picked.decision is not None
        record = self.service.records.get(picked.decision)
        assert record is not None
        return record.outcome


def room(
    *engines: Engine,
    caller: Caller = UNKNOWN,
    wishes: Wishes = Wishes(),  # noqa: B008  it is frozen
    interest: Interest = Interest.SERVED,
    conformance: bool = False,
    addresses: "Named | None" = None,
) -> Room:
    service, _ = watched(*engines)
    terms = Terms(10_000, interest, conformance=conformance)
    listing = Listing(service)
    queries = Queries(service, Reports(service, 60.0), 10_000, keys, NOTHING_HELD, listing)
    addresses = addresses or Named({each.endpoint: each.endpoint for each in engines})
    books = Books(
        service=service,
        queries=queries,
        holding=NOTHING_HELD,
        listing=listing,
        addresses=addresses,
        terms=terms,
        wishes=wishes,
        choose=lambda able: able[0],
    )
    return Room(Desk(books, caller), books, service)


def asked(body: Any = BODY, **changes: Any) -> Question:
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    return replace(Question("POST", "/v1/completions", (), raw, None, readable=False), **changes)


async def test_a_pick_names_the_endpoint_and_leaves_a_fitting_body_alone() -> None:
    picked = await room(engine("a")).picked(asked())
    assert (picked.endpoints, picked.backend, picked.body) == (("a",), None, None)
    assert picked.engine == "a"
    assert "authorization" in picked.remove_headers
    assert dict(picked.set_headers)["x-lineside-decision"] == picked.decision


@pytest.mark.parametrize(
    ("interest", "readable", "metered"),
    [
        pytest.param(Interest.USAGE, True, True, id="counted, and taken out again"),
        pytest.param(Interest.USAGE, False, False, id="it does not come by"),
        pytest.param(Interest.SERVED, True, False, id="it is not read"),
    ],
)
async def test_usage_is_asked_for_only_where_it_is_read(
    interest: Interest, readable: bool, metered: bool
) -> None:
    question = asked(BODY | {"stream": True}, readable=readable)
    picked = await room(engine("a"), interest=interest).picked(question)
    assert (b"include_usage" in (picked.body or b"")) is metered
    assert (("accept-encoding", "identity") in picked.set_headers) is (interest is Interest.USAGE)


async def test_only_fallbacks_that_need_no_other_request_are_named() -> None:
    engines = [engine("a"), engine("b"), replace(engine("c"), rank=1)]
    picked = await room(*engines, wishes=Wishes(endpoints=3)).picked(asked())
    if picked.endpoints[0] == "c":
        assert picked.endpoints == ("c",)
    else:
        assert set(picked.endpoints) == {"a", "b"}
    assert len((await room(*engines).picked(asked())).endpoints) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_request_without_a_body_goes_to_the_idlest_engine(method: str) -> None:
    here = room(engine("a"), engine("b"))
    busy = (await here.picked(asked())).endpoints[0]
    picked = await here.picked(asked(b"", method=method, path="/version"))
    assert picked.endpoints == (("b",) if busy == "a" else ("a",))
    assert (picked.decision, picked.body) == (None, None)
    assert "authorization" in picked.remove_headers
    nobody = asked(b"", method=method, path="/x", subset=frozenset({"z"}))
    assert (await here.rejected(nobody)).status == 503


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_models_are_those_of_all_engines_and_not_of_one(method: str) -> None:
    other = replace(
        engine("b", "g2"), models=(replace(engine("b").models[0], name=ModelName("n")),)
    )
    here = room(engine("a"), other)
    listed = await here.rejected(asked(b"", method=method, path="/v1/models?after=x"))
    assert (listed.status, listed.reason) == (200, "listed")
    assert [card["id"] for card in json.loads(listed.body)["data"]] == ["m", "n"]
    one = await here.rejected(asked(None, method=method, path="/v1/models/n"))
    assert (one.status, json.loads(one.body)["id"]) == (200, "n")
    headers = (("anthropic-version", "2023-06-01"), ("x-request-id", "r-1"))
    none = await here.rejected(asked(b"", method=method, path="/v1/models/z", headers=headers))
    assert (none.status, none.reason) == (404, "unknown_model")
    assert json.loads(none.body)["error"]["type"] == "not_found_error"
    assert dict(none.headers)["request-id"] == "r-1"


async def test_a_body_that_is_not_shown_is_done_without_where_there_is_one_model() -> None:
    here = room(engine("a"))
    assert (await here.picked(asked(None))).endpoints == ("a",)
    assert (await here.rejected(asked(None, path="/sleep"))).status == 404


async def test_one_that_is_not_shown_needs_a_name_where_there_are_more() -> None:
    other = replace(
        engine("b", "g2"), models=(replace(engine("b").models[0], name=ModelName("n")),)
    )
    here = room(engine("a"), other)
    assert (await here.rejected(asked(None))).reason == "body_withheld"
    named = (("x-gateway-model-name", "n"),)
    assert (await here.picked(asked(None, headers=named))).endpoints == ("b",)
    unknown = (("x-gateway-model-name", "z"),)
    assert (await here.rejected(asked(None, headers=unknown))).reason == "no_engine_ready"


@pytest.mark.parametrize(("caller", "tenant"), [(KNOWN, "acme"), (UNKNOWN, "default")])
async def test_only_a_known_gateway_says_whose_a_request_is(caller: Caller, tenant: str) -> None:
    here = room(engine("a"), caller=caller, wishes=Wishes(tenant_header="x-tenant"))
    picked = await here.picked(asked(headers=(("x-tenant", "acme"),)))
    assert picked.decision is not None
    record = here.service.records.get(picked.decision)
    assert record is not None
    assert record.tenant == tenant


async def test_hooks_are_there_only_where_they_are_asked_for() -> None:
    hook = ((contract.ASKED_FOR, "b, 10.0.0.9:1"),)
    engines = [replace(engine("a"), endpoint="a:1"), replace(engine("b"), endpoint="b:1")]
    picked = await room(*engines, conformance=True).picked(asked(b"", headers=hook))
    assert picked.endpoints == ("b:1", "10.0.0.9:1")
    assert (await room(*engines).rejected(asked(b"", headers=hook))).status == 400


NOTES: Sequence[Any] = [
    pytest.param([Finished(200, Usage(10, 3, 7))], "finished", 0, id="an answer"),
    pytest.param([FirstToken(), Finished(200, Usage())], "finished", 0, id="a stream"),
    pytest.param([Finished(400, Usage())], "rejected", 0, id="an engine's refusal"),
    pytest.param([FirstToken(), Aborted(Usage(None, None, 3))], "aborted", 0, id="it left"),
    pytest.param([Unseen()], None, 1, id="nothing is heard of it"),
    pytest.param([Unseen(200)], None, 1, id="a stream that began"),
    pytest.param([], None, 1, id="it goes on"),
]


@pytest.mark.parametrize(("notes", "end", "outstanding"), NOTES)
async def test_what_becomes_of_a_request_is_accounted(
    notes: list[Note], end: str | None, outstanding: int
) -> None:
    here = room(engine("a"))
    picked = await here.picked(asked(BODY | {"stream": True}))
    following = here.desk.follow(picked)
    for note in notes:
        here.desk.note(following, note)
    assert (here.outcome(picked).end, here.outstanding("a")) == (end, outstanding)


async def test_an_answer_whose_head_comes_by_ends_with_its_status() -> None:
    here = room(engine("a"))
    picked = await here.picked(asked())
    following = here.desk.follow(picked)
    for note in (Served("a", 0), Unseen(200)):
        here.desk.note(following, note)
    outcome = here.outcome(picked)
    assert (outcome.end, outcome.status, here.outstanding("a")) == ("unfollowed", 200, 0)


async def test_where_it_went_is_counted() -> None:
    here = room(engine("a"))
    picked = await here.picked(asked())
    following = here.desk.follow(picked)
    for note in (Served("a", 0), Served("b", 1), Served("z", None)):
        here.desk.note(following, note)
    here.desk.note(here.desk.follow(Picked(())), Served("z", None))  # nobody was told anything
    assert here.books.served == {"picked": 1, "fallback": 1, "elsewhere": 1}


BY_NAME = {"a": "10.0.0.1:80", "b": "10.0.0.2:80"}


async def test_an_engine_that_is_named_by_host_is_told_by_address() -> None:
    here = room(engine("a"), addresses=Named(BY_NAME), conformance=True)
    picked = await here.picked(asked())
    assert (picked.endpoints, picked.engine) == (("10.0.0.1:80",), "a")
    assert (await here.picked(asked(b"", method="GET"))).endpoints == ("10.0.0.1:80",)
    count = asked({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    counted = await here.picked(replace(count, path="/v1/messages/count_tokens"))
    assert counted.endpoints == ("10.0.0.1:80",)
    asked_for = (("test-epp-endpoint-selection", "10.0.0.1"),)
    assert (await here.picked(asked(headers=asked_for))).endpoints == ("10.0.0.1:80",)


async def test_a_subset_names_engines_by_address() -> None:
    here = room(engine("a"), engine("b"), addresses=Named(BY_NAME))
    for hint, told in (("10.0.0.2:80", "10.0.0.2:80"), ("10.0.0.1", "10.0.0.1:80")):
        for question in (asked(), asked(b"", method="GET")):
            picked = await here.picked(replace(question, subset=frozenset({hint})))
            assert picked.endpoints == (told,)
    nobody = await here.rejected(asked(subset=frozenset({"10.0.0.3"})))
    assert nobody.reason == "nothing_in_subset"


async def test_an_engine_whose_name_has_no_address_is_offered_to_nobody() -> None:
    here = room(engine("a"), engine("b"), addresses=Named({"b": "10.0.0.2:80"}))
    for _ in range(4):
        assert (await here.picked(asked(b"", method="GET"))).endpoints == ("10.0.0.2:80",)
        assert (await here.picked(asked())).endpoints == ("10.0.0.2:80",)
    shown = here.latest.to_json()["candidates"]
    (dropped,) = [each for each in shown if each["dropped_by"]]
    assert (dropped["id"], dropped["dropped_by"]) == ("a", "address")
    assert dropped["reason"] == "the gateway cannot be told where it is: no such name"
    here = room(engine("a"), addresses=Named({}))
    assert (await here.rejected(asked())).reason == "no_engine_ready"
    assert (await here.rejected(asked(b"", method="GET"))).reason == "no_engine_ready"


async def test_who_served_is_known_by_its_address() -> None:
    here = room(engine("a"), engine("b"), wishes=Wishes(2), addresses=Named(BY_NAME))
    picked = await here.picked(asked())
    following = here.desk.follow(picked)
    following.served = picked.endpoints[1]
    here.desk.note(following, FirstToken())
    here.desk.note(following, Finished(200, Usage(64, 0, 7)))
    assert {picked.engine, here.latest.to_json()["decision"]["id"]} == {"a", "b"}
