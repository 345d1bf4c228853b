"""Resources and a state are put together into what policies are evaluated on."""

from policies.facts import Target
from policies.load import load
from policies.model import BackendType, Measure, Resource
from policies.state import (
    Change,
    Cluster,
    ClusterState,
    EngineState,
    ModelState,
    PoolMoment,
    ProviderState,
    changed,
    cluster_of,
    offline_inventory,
)

API = "apiVersion: kinference.buoyant.io/v1alpha1"

RESOURCES = f"""\
{API}
kind: InferenceWorkerSet
metadata: {{name: listed}}
spec: {{engines: [{{url: "http://a:8000"}}, {{url: "http://b:8000/"}}], labels: {{gpu: h200}}}}
---
{API}
kind: InferenceWorkerSet
metadata: {{name: found}}
spec: {{selector: {{app: vllm}}}}
---
{API}
kind: InferencePool
metadata: {{name: big}}
spec: {{workerSets: ["*"], models: [{{name: m, aliases: [alias]}}], labels: {{team: t}}}}
---
{API}
kind: InferencePool
metadata: {{name: any}}
spec: {{models: [{{name: n, classes: [class]}}]}}
---
{API}
kind: InferenceProvider
metadata: {{name: p}}
spec: {{type: OpenAI, models: [{{name: m}}, {{name: far}}], labels: {{zone: eu}}}}
"""


def resources() -> list[Resource]:
    loaded = load([("r.yaml", RESOURCES.encode())])
    assert loaded.findings == ()
    return [each.resource for each in loaded.resources]


def local(id: str, model: str, names: str, labels: dict[str, str], pools: str) -> Target:
    types = BackendType.LOCAL
    return Target(id, types, model, frozenset(names.split()), labels, frozenset(pools.split()))  # type: ignore[arg-type]


def test_resources_alone_have_the_engines_that_they_list_or_stand_for() -> None:
    inventory = offline_inventory(resources())
    assert inventory is not None
    listed = {"gpu": "h200", "team": "t"}
    assert [each for each in inventory.targets if each.type is BackendType.LOCAL] == [
        local("a:8000", "m", "a:8000 listed big", listed, "big"),
        local("b:8000", "m", "b:8000 listed big", listed, "big"),
        local("found", "m", "found big", {"app": "vllm", "team": "t"}, "big"),
        local("any", "n", "any", {}, "any"),
    ]
    assert [(each.id, each.model) for each in inventory.targets[4:]] == [("p", "m"), ("p", "far")]
    assert inventory.meant("alias") == inventory.meant("m") == {"m"}
    assert inventory.meant("class") == {"n"}


def test_policies_alone_say_nothing_of_a_cluster() -> None:
    assert offline_inventory([]) is None


STATE = ClusterState(
    engines=(
        EngineState(id="x", url="http://a:8000", models=("m",), predicted_ttft=1.5),
        EngineState(id="y", models=("n", "o"), pools=("mine",), names=("set",), available=False),
        EngineState(id="z", models=("o",)),
    ),
    providers=(ProviderState(name="p", cost=0.5), ProviderState(name="q", models=("m",))),
    models=(ModelState(name="o", aliases=("oh",), labels={"size": "s"}), ModelState(name="gone")),
    pools={"big": PoolMoment(saturated=True)},
)


def test_a_state_has_its_own_engines_in_the_pools_that_take_them() -> None:
    cluster = cluster_of(resources(), STATE)
    targets = cluster.inventory.targets
    assert [(t.id, t.model, sorted(t.names), sorted(t.pools)) for t in targets] == [
        ("x", "m", ["big", "listed", "x"], ["big"]),
        ("y", "n", ["any", "mine", "set", "y"], ["any", "mine"]),
        ("y", "o", ["any", "mine", "set", "y"], ["any", "mine"]),
        ("z", "o", ["default", "z"], ["default"]),
        ("p", "m", ["p"], []),
        ("p", "far", ["p"], []),
        ("q", "m", ["q"], []),
    ]
    assert cluster.pools == {"big": True}
    assert cluster.out == 0b110
    assert cluster.inventory.meant("oh") == {"o"}
    assert cluster.inventory.models["o"].labels == {"size": "s"}  # type: ignore[index]
    assert "gone" not in cluster.inventory.models


def _column(cluster: Cluster, measure: Measure) -> list[float | None]:
    return [cluster.value(place, measure) for place in range(len(cluster.inventory.targets))]


def test_what_is_left_out_is_not_known_but_for_prompts() -> None:
    cluster = cluster_of(resources(), STATE)
    assert _column(cluster, Measure.PREDICTED_TTFT) == [1.5, *[None] * 6]
    assert _column(cluster, Measure.QUEUED_PROMPTS) == [0] * 7
    assert _column(cluster, Measure.COST) == [None, None, None, None, 0.5, 0.5, None]


def test_a_change_replaces_what_it_names_and_nothing_else() -> None:
    changes = {"x": Change(queued_prompts=4), "p": Change(available=False)}
    after = changed(STATE, changes, {"mine": PoolMoment(saturated=False)})
    assert after.engines[0] == EngineState(
        id="x", url="http://a:8000", models=("m",), predicted_ttft=1.5, queued_prompts=4
    )
    assert after.engines[1:] == STATE.engines[1:]
    assert [each.available for each in after.providers] == [False, True]
    assert {name: pool.saturated for name, pool in after.pools.items()} == {
        "big": True,
        "mine": False,
    }
