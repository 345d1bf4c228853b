"""A copy of objects, whatever order of lists and events made it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.kube.reflection import Broken, Gone, Reflection


def found(name: str, value: int, revision: int, uid: str = "u") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(revision)}
    return {"metadata": metadata, "spec": value}


def line(type: str, object: Any) -> bytes:
    return json.dumps({"type": type, "object": object}).encode()


def copy() -> Reflection[int]:
    return Reflection(lambda each: each["spec"])


def test_events_change_what_a_list_said() -> None:
    held = copy()
    assert held.replace([found("a", 1, 5), found("b", 1, 6)], "7")
    assert held.apply(line("MODIFIED", found("a", 2, 8)))
    assert held.apply(line("DELETED", found("b", 1, 9)))
    assert held.apply(line("ADDED", found("c", 3, 10)))
    assert not held.apply(line("BOOKMARK", found("", 0, 12)))
    assert (held.objects, held.revision) == ({("n", "a"): 2, ("n", "c"): 3}, "12")


def test_what_is_of_no_interest_is_no_change() -> None:
    held = copy()
    held.replace([found("a", 1, 5)], "7")
    before = held.objects
    assert not held.apply(line("MODIFIED", found("a", 1, 8)))
    assert held.objects is before and held.revision == "8"
    assert not held.replace([found("a", 1, 9)], "9")


def test_a_copy_that_somebody_holds_is_never_written_into() -> None:
    held = copy()
    held.replace([found("a", 1, 5)], "7")
    before = held.objects
    held.apply(line("DELETED", found("a", 1, 8)))
    assert (before, held.objects) == ({("n", "a"): 1}, {})


def test_the_end_of_an_earlier_object_of_the_name_ends_nothing() -> None:
    held = copy()
    held.replace([found("a", 2, 9, "new")], "9")
    assert not held.apply(line("DELETED", found("a", 1, 10, "old")))
    assert held.objects == {("n", "a"): 2}


def test_another_object_of_the_same_name_is_a_change() -> None:
    held = copy()
    held.replace([found("a", 1, 5, "old")], "7")
    assert held.replace([found("a", 1, 8, "new")], "9")


def test_an_old_revision_is_told_from_other_failures() -> None:
    with pytest.raises(Gone):
        copy().apply(line("ERROR", {"code": 410, "reason": "Expired"}))
    with pytest.raises(Broken, match="code 500"):
        copy().apply(line("ERROR", {"code": 500}))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"type":"ADDED","obj', id="half a line"),
        pytest.param(b"[]", id="no mapping"),
        pytest.param(line("ADDED", {}), id="no metadata"),
        pytest.param(line("ADDED", {"metadata": {"name": "a"}}), id="no revision"),
        pytest.param(line("ADDED", {"metadata": {"resourceVersion": "1"}}), id="no name"),
        pytest.param(line("MOVED", found("a", 1, 2)), id="an event that there is not"),
        pytest.param(line("BOOKMARK", {"metadata": {"resourceVersion": ""}}), id="empty revision"),
    ],
)
def test_what_is_no_event_changes_nothing(event: bytes) -> None:
    held = copy()
    held.replace([found("a", 1, 5)], "7")
    with pytest.raises(Broken):
        held.apply(event)
    assert (held.objects, held.revision) == ({("n", "a"): 1}, "7")


Step = tuple[str, str, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "recreate", "bookmark", "lose", "gone"]),
        st.sampled_from("abc"),
        st.integers(0, 3),
    ),
    max_size=30,
)


class Server:
    """What an API server does, of which a reflector sees a part."""

    def __init__(self) -> None:
        self.revision = 1
        self.objects: dict[str, dict[str, Any]] = {}
        self.uids = 0

    def change(self, what: str, name: str, value: int) -> bytes | None:
        """Change something; return its event."""
        self.revision += 1
        there = self.objects.get(name)
        if what == "delete" or (what == "recreate" and there):
            if there is None:
                return None
            del self.objects[name]
            last = there | {"metadata": there["metadata"] | {"resourceVersion": str(self.revision)}}
            return line("DELETED", last)
        if what == "bookmark":
            return line("BOOKMARK", {"metadata": {"resourceVersion": str(self.revision)}})
        if there is None:
            self.uids += 1
        uid = there["metadata"]["uid"] if there else f"u{self.uids}"
        self.objects[name] = found(name, value, self.revision, uid)
        return line("MODIFIED" if there else "ADDED", self.objects[name])


@given(STEPS)
@settings(max_examples=200)
def test_after_any_course_of_events_the_copy_is_what_there_is(steps: list[Step]) -> None:
    """Events may be lost with their watch, or the revision be gone: a list follows either."""
    server, held = Server(), copy()
    held.replace([], "1")
    missed = False
    for what, name, value in steps:
        event = server.change("put" if what in ("lose", "gone") else what, name, value)
        if what == "lose":
            missed = True  # the watch broke off before the event came
        elif what == "gone" or missed:
            if what == "gone":
                with pytest.raises(Gone):
                    held.apply(line("ERROR", {"code": 410}))
            held.replace(server.objects.values(), str(server.revision))
            missed = False
        elif event is not None:
            held.apply(event)
        if not missed:
            assert held.objects == {("n", n): o["spec"] for n, o in server.objects.items()}


@given(STEPS)
@settings(max_examples=100)
def test_a_change_is_told_exactly_when_something_changed(steps: list[Step]) -> None:
    server, held = Server(), copy()
    held.replace([], "1")
    for what, name, value in steps:
        before = held.objects
        uids = {n: o["metadata"]["uid"] for n, o in server.objects.items()}
        event = server.change("put" if what in ("lose", "gone") else what, name, value)
        now = {n: o["metadata"]["uid"] for n, o in server.objects.items()}
        told = event is not None and held.apply(event)
        assert told == (held.objects != before or uids != now)
