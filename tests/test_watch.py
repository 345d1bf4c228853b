"""What each outcome of a request says about its engine."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from coordinator.attempts import Attempt, Repeat
from coordinator.engines import Engine
from coordinator.limits import Usage
from coordinator.metrics import Metrics
from coordinator.refusal import Draining, Refusal, UpstreamBroken, UpstreamTimeout
from coordinator.service import Routed
from coordinator.watch import WatchedService
from tests.test_service import TENANT, bench, engine, request


class Told:
    """Stands for the breakers and remembers what it was told. Every request is on trial."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def told(*what: Any) -> bool:
            self.said.append((name, *what))
            return True

        return told


def watched(*names: str | Engine) -> tuple[WatchedService, Told]:
    engines = [engine(name) if isinstance(name, str) else name for name in names]
    plain, told = bench(*engines).service, Told()
    parts: dict[str, Any] = {
        field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)
    }
    parts |= {"breakers": told, "metrics": Metrics(CollectorRegistry())}
    return WatchedService(**parts), told


async def test_a_client_that_leaves_ends_no_trial_but_its_own() -> None:
    service, told = watched("a")
    first, second = await sent(service), await sent(service)
    second.on_trial = False
    service.aborted(second, Usage())
    assert told.said[2:] == []
    service.aborted(first, Usage())
    assert told.said[2:] == [("left", "a", 1000.0)]


async def sent(service: WatchedService) -> Routed:
    routed = await service.route(request(stream=True), TENANT, "r")
    assert isinstance(routed, Routed)
    return routed


@pytest.mark.parametrize(
    ("end", "said"),
    [
        pytest.param(
            lambda s, r: s.first_token(r), [("answered", "a", 1000.0)], id="a first token"
        ),
        pytest.param(lambda s, r: s.got_on(r), [("got_on", "a", 1000.0)], id="a stream goes on"),
        pytest.param(
            lambda s, r: s.finished(r, 200, Usage(), None),
            [("answered", "a", 1000.0)],
            id="an answer",
        ),
        pytest.param(
            lambda s, r: s.finished(r, 400, Usage(), None),
            [("answered", "a", 1000.0)],
            id="the client's mistake",
        ),
        pytest.param(
            lambda s, r: s.finished(r, 500, Usage(), None),
            [("failed", "a", 1000.0)],
            id="the engine's mistake",
        ),
        pytest.param(
            lambda s, r: s.aborted(r, Usage()), [("left", "a", 1000.0)], id="a client left"
        ),
    ],
)
async def test_ends(
    end: Callable[[WatchedService, Routed], Any], said: list[tuple[Any, ...]]
) -> None:
    service, told = watched("a")
    routed = await sent(service)
    assert told.said == [("sent", "a", 1000.0)]
    end(service, routed)
    assert told.said[1:] == said


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        pytest.param(UpstreamBroken(), ("failed", "a", 1000.0), id="it hung up"),
        pytest.param(
            UpstreamTimeout("first_token", 9), ("silent", "a", 991.0, 1000.0), id="silence"
        ),
        pytest.param(
            UpstreamTimeout("idle", 9), ("silent", "a", 991.0, 1000.0), id="a stalled stream"
        ),
        pytest.param(Draining(), ("left", "a", 1000.0), id="we stop"),
    ],
)
async def test_failures(refusal: Refusal, said: tuple[Any, ...]) -> None:
    service, told = watched("a")
    routed = await sent(service)
    service.failed(routed, refusal)
    service.failed(routed, refusal)  # a request ends once
    assert told.said[1:] == [said]


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        pytest.param((Repeat.SAFE, "the engine answered 503", True), "failed", id="unavailable"),
        pytest.param((Repeat.SAFE, "connection refused", False), "left", id="discovery's word"),
    ],
)
async def test_a_fallback_tells_of_both_engines(
    attempt: tuple[Repeat, str, bool], said: str
) -> None:
    service, told = watched("a", "b")
    routed = await sent(service)
    first = routed.target.id
    assert service.fallback(routed, Attempt(first, *attempt))
    assert told.said[1:] == [(said, first, 1000.0), ("sent", routed.target.id, 1000.0)]


async def test_what_has_no_fallback_is_told_by_its_end_alone() -> None:
    service, told = watched("a")
    routed = await sent(service)
    failed = Attempt(routed.target.id, Repeat.UNCERTAIN, "the connection broke")
    assert not service.fallback(routed, failed)
    service.failed(routed, UpstreamBroken())
    assert told.said[1:] == [("failed", "a", 1000.0)]
