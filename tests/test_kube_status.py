"""What is said of objects, by whom, how often, and in spite of whom else writes."""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from coordinator.kube.api import JSON, Answer, ApiAway, Body, Query
from coordinator.kube.conditions import (
    MESSAGE_CHARS,
    Condition,
    Said,
    listed,
    patch_of,
    said_of,
    transitions,
)
from coordinator.kube.status import STEADY_S, Due, StatusWriter
from coordinator.kube.written import Ident, Written, written
from lineside.findings import Finding, Place
from tests.manual_clock import ManualClock, settle

KIND = "InferencePolicy"
SPEC = {"rules": [{"name": "r", "route": {}}]}
WRONG = Finding(Place("InferencePolicy n/a: spec.rules[0]"), "no-effect", "it does nothing", "say")


def stored(
    name: str = "a", generation: int = 1, revision: int = 1, **status: Any
) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": f"u-{name}",
        "generation": generation,
        "resourceVersion": str(revision),
    }
    return {"metadata": metadata, "spec": SPEC, "status": status}


def an(**said: Any) -> Written:
    return written(KIND, stored(**said))


def good(each: Written, *unresolved: Finding) -> Said:
    return said_of(each, each.form, (), unresolved, False)


def said_before(each: Written, said: Said, revision: int = 2) -> Written:
    """Return the object with this in its status."""
    patch = patch_of(each, said, 0.0)
    assert patch is not None
    return written(
        KIND, stored(generation=each.form.generation, revision=revision, **patch[1]["value"])
    )


def by_type(said: Said) -> dict[str, tuple[bool, str, str]]:
    return {each.type: (each.is_true, each.reason, each.message) for each in said.conditions}


def test_what_is_in_force_is_said_to_be() -> None:
    assert by_type(good(an())) == {
        "Accepted": (True, "Accepted", "it is in force"),
        "ResolvedRefs": (True, "ResolvedRefs", "all names are there"),
        "Programmed": (True, "Programmed", "coordinators go by it"),
    }


def test_what_is_wrong_is_said_with_its_field() -> None:
    each = an(generation=3)
    earlier = replace(each.form, generation=2)
    said = said_of(each, earlier, [WRONG], (), False)
    assert by_type(said) == {
        "Accepted": (False, "Invalid", "spec.rules[0]: no-effect: it does nothing (say)"),
        "ResolvedRefs": (True, "ResolvedRefs", "all names are there"),
        "Programmed": (False, "EarlierGeneration", "generation 2 is in force"),
    }
    assert said.in_force == earlier
    never = said_of(each, None, [WRONG], (), False)
    assert by_type(never)["Programmed"] == (False, "Invalid", "nothing of it is in force")


def test_what_was_rolled_back_is_not_in_force() -> None:
    each = an()
    assert by_type(said_of(each, each.form, (), (), True))["Programmed"][:2] == (
        False,
        "RolledBack",
    )


def test_many_findings_are_counted() -> None:
    many = [replace(WRONG, message="x" * 90) for _ in range(100)]
    text = listed(many, "InferencePolicy n/a")
    assert len(text) < MESSAGE_CHARS + 50 and text.splitlines()[-1].startswith("and ")
    assert listed([WRONG], "InferencePool n/b").startswith("InferencePolicy n/a: spec.rules[0]: ")


def test_what_is_said_already_is_not_said_again() -> None:
    each = an()
    after = said_before(each, good(each))
    assert patch_of(after, good(after), 99.0) is None


def test_a_condition_keeps_the_time_of_its_last_turn() -> None:
    each = an()
    after = said_before(each, good(each))
    missing = replace(WRONG, code="unknown-backend")
    patch = patch_of(after, good(after, missing), 3600.0)
    assert patch is not None
    times = {each["type"]: each["lastTransitionTime"] for each in patch[1]["value"]["conditions"]}
    assert times == {
        "Accepted": "1970-01-01T00:00:00Z",
        "ResolvedRefs": "1970-01-01T01:00:00Z",
        "Programmed": "1970-01-01T00:00:00Z",
    }
    assert patch[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "2"}


def test_what_others_say_stays() -> None:
    foreign = {"type": "Audited", "status": "True"}
    patch = patch_of(an(conditions=[foreign]), good(an()), 0.0)
    assert patch is not None and patch[1]["value"]["conditions"][0] == foreign


def told(each: Written, said: Said) -> list[tuple[str, bool]]:
    return [(condition.type, condition.is_true) for condition in transitions(each, said)]


def test_events_tell_of_bad_news_and_of_its_end() -> None:
    each = an(generation=2)
    wrong = said_of(each, None, [WRONG], (), False)
    assert told(each, good(each)) == []
    assert told(each, wrong) == [("Accepted", False), ("Programmed", False)]
    after = said_before(each, wrong)
    assert told(after, wrong) == []
    again = said_of(
        replace(after, form=replace(after.form, generation=3)), None, [WRONG], (), False
    )
    assert told(after, again) == [("Accepted", False), ("Programmed", False)]
    assert told(after, good(after)) == [("Accepted", True), ("Programmed", True)]


class Server:
    """Keeps objects as an API server does, and notes who asks."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {each["metadata"]["name"]: copy.deepcopy(each) for each in objects}
        self.asked: list[str] = []
        self.events: list[Any] = []
        self.answers: list[Answer | Exception] = []
        """What is answered instead, in order."""
        self.interfere = 0
        """How many writes come between a read and a write of ours."""

    async def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Body | None = None,
        content_type: str = JSON,
    ) -> Answer:
        self.asked.append(method)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if path.endswith("/events"):
            self.events.append(body)
            return Answer(201, b"{}")
        found = self.objects.get(path.removesuffix("/status").rpartition("/")[2])
        if found is None:
            return Answer(404, b"{}")
        if method == "PATCH":
            assert path.endswith("/status") and isinstance(body, list)
            if self.interfere:
                self.interfere -= 1
                self._touch(found)
            if body[0]["value"] != found["metadata"]["resourceVersion"]:
                return Answer(409, b'{"message":"conflict"}')
            found["status"] = body[1]["value"]
            self._touch(found)
        return Answer(200, json.dumps(found).encode())

    async def watch(self, path: str, query: Query, idle_s: float) -> AsyncGenerator[bytes, None]:
        raise AssertionError("nobody watches")
        yield b""

    async def close(self) -> None:
        pass

    def _touch(self, found: dict[str, Any]) -> None:
        found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)


class Bench:
    def __init__(self, server: Server, writer: StatusWriter, clock: ManualClock) -> None:
        self.server, self.writer, self.clock = server, writer, clock
        self.leads = True

    async def want(self, *pairs: tuple[Written, Said]) -> None:
        due: dict[Ident, Due] = {each.ident: Due(each, said) for each, said in pairs}
        self.writer.want(due)
        await self.pass_(0.5)

    async def pass_(self, seconds: float) -> None:
        for _ in range(max(1, int(seconds * 10))):
            await settle()
            await self.clock.advance(0.1)


@asynccontextmanager
async def bench(*objects: dict[str, Any]) -> AsyncIterator[Bench]:
    clock, server = ManualClock(), Server(*objects)
    made = Bench(server, StatusWriter(server, clock, lambda: made.leads), clock)
    task = asyncio.create_task(made.writer.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_status_is_written_once() -> None:
    async with bench(stored()) as b:
        for _ in range(3):
            await b.want((an(), good(an())))  # the watch has not brought our own write yet
        assert b.server.asked == ["PATCH"]
        assert len(b.server.objects["a"]["status"]["conditions"]) == 3
        assert b.writer.counts == {"written": 1}


async def test_only_the_leader_writes() -> None:
    async with bench(stored()) as b:
        b.leads = False
        await b.want((an(), good(an())))
        assert b.server.asked == []
        b.leads = True
        await b.want((an(), good(an())))
        assert b.server.asked == ["PATCH"]


async def test_a_conflict_is_settled_by_reading_anew() -> None:
    async with bench(stored()) as b:
        b.server.interfere = 2
        await b.want((an(), good(an())))
        assert b.server.asked == ["PATCH", "GET", "PATCH", "GET", "PATCH"]
        assert b.writer.counts == {"conflict": 2, "written": 1}


async def test_a_form_that_was_not_judged_is_not_spoken_of() -> None:
    async with bench(stored(generation=2, revision=5)) as b:
        await b.want((an(), good(an())))
        assert b.server.asked == ["PATCH", "GET"]
        assert b.server.objects["a"]["status"] == {}


async def test_an_object_that_is_gone_is_no_failure() -> None:
    async with bench() as b:
        await b.want((an(), good(an())))
        assert b.writer.counts == {"gone": 1} and b.writer.problem == ""


async def test_writes_of_many_objects_are_spaced() -> None:
    names = [f"o{number}" for number in range(20)]
    async with bench(*(stored(name=name) for name in names)) as b:
        pairs = [(an(name=name), good(an(name=name))) for name in names]
        await b.want(*pairs)
        assert 4 <= len(b.server.asked) <= 7
        await b.pass_(2)
        assert len(b.server.asked) == 20


async def test_names_that_are_missing_for_a_moment_are_not_told_of() -> None:
    missing = replace(WRONG, code="unknown-backend")
    async with bench(stored()) as b:
        await b.want((an(), good(an())))
        now = written(KIND, b.server.objects["a"])
        await b.want((now, good(now, missing)))
        await b.pass_(STEADY_S - 2)
        await b.want((now, good(now)))
        assert b.server.asked == ["PATCH"]
        b.writer.want({now.ident: Due(now, good(now, missing))})
        for _ in range(int(STEADY_S) + 2):
            b.writer.want({now.ident: Due(now, good(now, missing))})
            await b.pass_(1)
        assert b.server.asked == ["PATCH", "PATCH", "POST"]


async def test_names_that_a_new_object_lacks_are_told_of_when_that_lasts() -> None:
    missing = replace(WRONG, code="unknown-backend")
    async with bench(stored()) as b:
        due = {an().ident: Due(an(), good(an(), missing))}
        b.writer.want(due)
        await b.pass_(2)
        types = [each["type"] for each in b.server.objects["a"]["status"]["conditions"]]
        assert (types, b.server.events) == (["Accepted", "Programmed"], [])
        for _ in range(int(STEADY_S) + 1):
            b.writer.want(due)
            await b.pass_(1)
        types = [each["type"] for each in b.server.objects["a"]["status"]["conditions"]]
        assert types == ["Accepted", "Programmed", "ResolvedRefs"]
        assert [each["reason"] for each in b.server.events] == ["UnresolvedRefs"]


async def test_names_that_change_all_the_time_are_not_told_of() -> None:
    async with bench(stored()) as b:
        await b.want((an(), good(an())))
        now = written(KIND, b.server.objects["a"])
        for number in range(30):
            missing = replace(WRONG, code="unknown-backend", message=str(number))
            b.writer.want({now.ident: Due(now, good(now, missing))})
            await b.pass_(1)
        assert b.server.asked == ["PATCH"]


async def test_a_bad_form_is_told_at_once_and_in_an_event() -> None:
    async with bench(stored()) as b:
        each = an()
        await b.want((each, said_of(each, None, [WRONG], (), False)))
        assert b.server.asked == ["PATCH", "POST", "POST"]
        event = b.server.events[0]
        assert (event["type"], event["reason"]) == ("Warning", "Invalid")
        assert event["message"] == "spec.rules[0]: no-effect: it does nothing (say)"
        assert event["involvedObject"] == {
            "apiVersion": "kinference.buoyant.io/v1alpha1",
            "kind": KIND,
            "namespace": "n",
            "name": "a",
            "uid": "u-a",
            "resourceVersion": "1",
        }
        assert event["metadata"]["namespace"] == "n"
        names = {each["metadata"]["name"] for each in b.server.events}
        assert len(names) == 2 and all(name.startswith("a.") for name in names)


async def test_a_server_that_is_away_is_asked_again() -> None:
    async with bench(stored()) as b:
        b.server.answers = [ApiAway("cannot connect")]
        await b.want((an(), good(an())))
        assert b.writer.problem == "cannot connect"
        await b.want((an(), good(an())))
        assert (b.server.asked, b.writer.problem) == (["PATCH", "PATCH"], "")


async def test_a_right_that_is_missing_is_named_and_not_asked_for_all_the_time() -> None:
    async with bench(stored()) as b:
        b.server.answers = [Answer(403, b'{"message":"may not patch"}')]
        await b.want((an(), good(an())))
        await b.pass_(20)
        assert b.server.asked == ["PATCH"]
        assert b.writer.problem == "it answers 403: may not patch"


async def test_an_event_that_may_not_be_sent_hinders_nothing() -> None:
    async with bench(stored()) as b:
        each = an()
        ok = Answer(200, json.dumps(stored()).encode())
        b.server.answers = [ok, Answer(403, b"{}"), Answer(403, b"{}")]
        await b.want((each, said_of(each, None, [WRONG], (), False)))
        assert b.writer.counts == {"written": 1, "event_failed": 2}


@pytest.mark.parametrize("status", [409, 201], ids=["said before", "said now"])
async def test_what_two_leaders_say_is_one_event(status: int) -> None:
    async with bench(stored()) as b:
        each = an()
        ok = Answer(200, json.dumps(stored()).encode())
        b.server.answers = [ok, Answer(status, b"{}"), Answer(status, b"{}")]
        await b.want((each, said_of(each, None, [WRONG], (), False)))
        assert b.writer.counts == {"written": 1, "event": 2}


def test_a_condition_is_as_kubernetes_has_it() -> None:
    assert Condition("Accepted", False, "Invalid", "why").to_json(3, "t") == {
        "type": "Accepted",
        "status": "False",
        "reason": "Invalid",
        "message": "why",
        "observedGeneration": 3,
        "lastTransitionTime": "t",
    }


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b'{"metadata"', b"[" * 5_000])
async def test_an_answer_that_is_no_object_ends_nothing(body: bytes) -> None:
    async with bench(stored()) as b:
        b.server.answers = [Answer(200, body)]
        await b.want((an(), good(an())))
        assert b.writer.problem == "its answer is no object"
        await b.want((an(), good(an())))
        assert (b.writer.problem, b.writer.counts["written"]) == ("", 2)
