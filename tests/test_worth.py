"""What engines' caches are worth, and which deletion costs are written when."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.kube.api import JSON, Answer, ApiAway, Body, Query
from coordinator.kube.costs import (
    AGAIN_S,
    AT_ONCE,
    IN_FLIGHT_TOKENS,
    MOST,
    Costs,
    cost_of,
)
from coordinator.kube.deletion_costs import (
    MERGE_PATCH,
    REFUSED_S,
    ROUND_S,
    DeletionCosts,
    wanted_of,
)
from coordinator.kube.pods import Pod
from coordinator.worth import HALF_LIFE_S, CacheWorth
from lineside.ids import EngineId, PodIdent
from lineside.signals import Events, Status
from tests.manual_clock import ManualClock
from tests.scene import view

A, B = EngineId("a"), EngineId("b")


def seen(blocks: int | None, name: str = "a"):  # type: ignore[no-untyped-def]
    status = None if blocks is None else Status(Events.LIVE, block_size=16, blocks=blocks)
    made = view(name)
    return made._replace(
        engine=replace(made.engine, id=EngineId(name), events="tcp://e:1"),
        status=status,
        digest_live=True,
        heard_age_s=0.0,
    )


@pytest.mark.parametrize(
    ("reads", "blocks", "at", "expected"),
    [
        pytest.param([], 100, 0.0, 0, id="nobody reads it"),
        pytest.param([(A, 160, 0.0)], 100, 0.0, 160, id="what was read"),
        pytest.param([(A, 160, 0.0)] * 20, 100, 0.0, 1600, id="no more than there is"),
        pytest.param([(A, 160, 0.0)], 0, 0.0, 0, id="an empty cache"),
        pytest.param([(A, 160, 0.0)], 100, HALF_LIFE_S, 80, id="it fades"),
        pytest.param([(A, 160, 0.0), (A, 160, HALF_LIFE_S)], 100, HALF_LIFE_S, 240, id="and adds"),
        pytest.param([(B, 160, 0.0)], 100, 0.0, 0, id="another one's"),
        pytest.param([(A, 160, 0.0)], None, 0.0, None, id="nothing is known of it"),
    ],
)
def test_worth_is_what_was_read_lately_and_is_there(
    reads: list[tuple[EngineId, int, float]], blocks: int | None, at: float, expected: int | None
) -> None:
    worth = CacheWorth()
    for engine, tokens, when in reads:
        worth.note(engine, tokens, when)
    assert worth.tokens(seen(blocks), at) == expected


def test_an_engine_that_left_is_forgotten() -> None:
    worth = CacheWorth()
    worth.note(A, 16, 0.0)
    worth.note(B, 16, 0.0)
    worth.keep({B})
    assert (worth.read_tokens(A, 0.0), worth.read_tokens(B, 0.0)) == (0.0, 16.0)


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        pytest.param([], None, id="no engine"),
        pytest.param([(None, 0)], None, id="nothing known, nothing to do"),
        pytest.param([(None, 2)], 2 * IN_FLIGHT_TOKENS, id="requests count without a cache"),
        pytest.param([(500, 0), (700, 1)], 1200 + IN_FLIGHT_TOKENS, id="ranks add up"),
        pytest.param([(2**40, 0)], MOST, id="no more than Kubernetes can read"),
    ],
)
def test_a_cost_is_of_all_engines_in_a_pod(
    engines: list[tuple[int | None, int]], expected: int | None
) -> None:
    assert cost_of(engines) == expected


def pod(n: int, ip: str = "", **change: bool) -> Pod:
    said = {"is_ready": True, "is_terminating": False, "has_ended": False, **change}
    return Pod(
        name=f"p{n}",
        namespace="ns",
        uid=f"u{n}",
        labels=(),
        ip=ip or f"10.0.0.{n}",
        node="node",
        **said,
    )


def ident(n: int) -> PodIdent:
    return PodIdent("ns", f"p{n}", f"u{n}")


def test_the_greatest_changes_come_first_and_few_at_a_time() -> None:
    costs = Costs()
    wanted = {ident(n): 10_000 for n in range(15)}
    first = costs.due(wanted, 0.0)
    assert len(first) == AT_ONCE
    for each, cost in first:
        costs.wrote(each, cost, 0.0)
    assert len(costs.due(wanted, 30.0)) == 5
    changed = wanted | {first[0][0]: 13_000, first[1][0]: 90_000, first[2][0]: 10_500}
    for each, cost in costs.due(changed, 30.0):
        costs.wrote(each, cost, 30.0)
    due = costs.due(changed, AGAIN_S)
    assert due == [(first[1][0], 90_000), (first[0][0], 13_000)]  # 500 more are too few


def test_a_small_cost_changes_by_a_thousand_at_least() -> None:
    costs = Costs()
    costs.wrote(ident(1), 100, 0.0)
    assert costs.due({ident(1): 1_000}, 1e6) == []
    assert costs.due({ident(1): 1_100}, 1e6) == [(ident(1), 1_100)]
    assert costs.due({ident(1): 0}, 1e6) == []


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2**33)), max_size=60))
def test_a_pod_is_never_written_twice_in_a_minute(steps: list[tuple[int, int]]) -> None:
    costs, written, now = Costs(), dict[PodIdent, float](), 0.0
    for n, cost in steps:
        now += 7.0
        for each, value in costs.due({ident(n): cost, ident(n + 1): cost}, now):
            assert now - written.get(each, -1e9) >= AGAIN_S or each not in costs._written
            costs.wrote(each, value, now)
            written[each] = now


def test_engines_are_found_in_pods_by_their_address() -> None:
    pods = [pod(1), pod(2), pod(3, "10.0.0.9"), pod(4, "10.0.0.9"), pod(5, is_terminating=True)]
    worths = {
        "10.0.0.1:8000/0": (100, 0),
        "10.0.0.1:8000/1": (50, 1),
        "10.0.0.9:8000": (7, 0),  # two pods of a host's network: whose it is cannot be told
        "10.0.0.5:8000": (7, 0),
        "elsewhere:8000": (7, 0),
    }
    assert dict(wanted_of(pods, worths)) == {ident(1): 150 + IN_FLIGHT_TOKENS}


class Patched:
    """An API server that takes patches, or answers with one status."""

    def __init__(self) -> None:
        self.status = 200
        self.away = False
        self.asked: list[tuple[str, str, object, str]] = []

    async def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Body | None = None,
        content_type: str = JSON,
    ) -> Answer:
        if self.away:
            raise ApiAway("no answer in time")
        self.asked.append((method, path, body, content_type))
        return Answer(self.status, b"{}")

    def watch(self, path: str, query: Query, idle_s: float):  # type: ignore[no-untyped-def]
        raise AssertionError("it watches nothing")

    async def close(self) -> None:
        pass


async def test_the_leader_alone_writes_and_only_what_changed() -> None:
    api, clock, leads = Patched(), ManualClock(), [False]
    worths: dict[str, tuple[int | None, int]] = {"10.0.0.1:8000": (5_000, 0)}
    costs = DeletionCosts(api, clock, lambda: leads[0], lambda: [pod(1)], lambda: worths)
    assert await costs.look() == ROUND_S
    assert api.asked == []
    leads[0] = True
    await costs.look()
    await costs.look()
    assert api.asked == [
        (
            "PATCH",
            "/api/v1/namespaces/ns/pods/p1",
            {
                "metadata": {
                    "uid": "u1",
                    "annotations": {"controller.kubernetes.io/pod-deletion-cost": "5000"},
                }
            },
            MERGE_PATCH,
        )
    ]
    leads[0] = False
    await costs.look()  # another one writes meanwhile
    leads[0] = True
    await costs.look()
    assert len(api.asked) == 2 and costs.counts == {"written": 2}


@pytest.mark.parametrize(
    ("status", "wait_s", "counts"),
    [
        pytest.param(404, ROUND_S, {"gone": 1}, id="the pod is gone"),
        pytest.param(409, ROUND_S, {"gone": 1}, id="another pod has its name"),
        pytest.param(403, REFUSED_S, {"failed": 1}, id="no right"),
        pytest.param(500, ROUND_S, {"failed": 1}, id="the server fails"),
    ],
)
async def test_what_is_not_written_is_tried_again(
    status: int, wait_s: float, counts: dict[str, int]
) -> None:
    api = Patched()
    api.status = status
    worths = {"10.0.0.1:8000": (5_000, 0)}
    costs = DeletionCosts(api, ManualClock(), lambda: True, lambda: [pod(1)], lambda: worths)
    assert await costs.look() == wait_s
    assert costs.counts == counts
    api.status = 200
    await costs.look()
    assert costs.counts["written"] == 1


async def test_a_server_that_is_away_is_asked_again_in_the_next_round() -> None:
    api = Patched()
    api.away = True
    worths = {"10.0.0.1:8000": (5_000, 0)}
    costs = DeletionCosts(api, ManualClock(), lambda: True, lambda: [pod(1)], lambda: worths)
    assert await costs.look() == ROUND_S and costs.counts == {}
