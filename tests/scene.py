"""What a decision is made on, for tests: engines, a layout, policies that say nothing."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.candidates import Backend
from coordinator.engines import Engine, EngineView, ServedModel
from coordinator.load.inflight import EMPTY, Loads, Queue
from coordinator.load.predict import Predictor
from coordinator.measurement import Facts, Held, Units, measure
from coordinator.route import Decision, decide
from coordinator.runners import field_of
from coordinator.targets import Layout
from lineside.ids import EngineId, GroupId, ModelName, NodeId
from lineside.signals import Events, Status
from policies.evaluate import compile_
from policies.facts import RequestFacts
from policies.inventory import EngineFacts, inventory_of
from policies.model import InferencePolicy
from policies.verdict import Denied

MODEL = ModelName("m")
BETA = 1.0


def view(name: str, block_size: int = 16, **changes: Any) -> EngineView:
    """Return an idle engine of which everything is known."""
    engine = Engine(
        id=EngineId(name),
        base_url=f"http://{name}",
        endpoint=name,
        group=GroupId("g"),
        models=(ServedModel(MODEL),),
        node=NodeId("n"),
        events="tcp://e:1",
    )
    live = EngineView(
        engine=engine,
        heard_age_s=0.1,
        status=Status(Events.LIVE, block_size=block_size),
        digest_live=True,
    )
    return live._replace(**changes)


def layout_of(views: Sequence[EngineView]) -> Layout:
    """Lay out engines that serve one model."""
    facts = [EngineFacts(each.engine.id, each.engine.base_url, (MODEL,)) for each in views]
    backends: dict[str, Backend] = {each.engine.id: each.engine for each in views}
    return Layout.of(inventory_of((), (), (), facts), backends)


class NoOutlook:
    """Expects nothing, and knows no price."""

    def e2e_s(self, engine: Engine, ttft_s: float, running: int) -> float:
        return ttft_s

    def provider_ttft_s(self, place: int) -> float | None:
        return None

    def provider_e2e_s(self, place: int) -> float | None:
        return None

    def price(self, place: int, uncached: int, cached: int) -> float | None:
        return None

    def provider_price(self, place: int) -> float | None:
        return None


def decided(
    views: Sequence[EngineView],
    predictor: Predictor,
    prompt: int | None = 1000,
    overlaps: Mapping[str, Units] | None = None,
    queues: Mapping[str, Queue] | None = None,
    ahead: Mapping[str, int] | None = None,
    recent: Callable[[Engine], float] = lambda _: 0.0,
    seed: int = 0,
    policies: Sequence[InferencePolicy] = (),
) -> Decision:
    """Decide on one request."""
    layout = layout_of(views)
    plan = compile_(policies).bind(layout.inventory).plan(RequestFacts(model=MODEL), {})
    assert not isinstance(plan, Denied)
    field = field_of(MODEL, views, layout, predictor.class_of)
    known = [(queues or {}).get(engine, EMPTY) for engine in field.row.engines]
    engine_of = {each.engine.id: each.engine for each in views}
    part = measure(
        field,
        Facts(prompt, load_tokens=1000 if prompt is None else prompt),
        Held(
            [(units, (EngineId(name),)) for name, units in (overlaps or {}).items()],
            {EngineId(name): units for name, units in (ahead or {}).items()},
        ),
        Loads(
            [queue.outstanding + queue.peers.outstanding for queue in known],
            [queue.queued + queue.peers.queued for queue in known],
            [queue.wait_s + queue.peers.wait_s for queue in known],
        ),
        lambda engines, _: [recent(engine_of[engine]) for engine in engines],
        predictor,
        lambda own_s: BETA,
    )
    return decide(plan, [part], layout, NoOutlook(), random.Random(seed))
