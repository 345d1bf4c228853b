"""Resources bound to engines: prices, providers that can be sent to, pools that are full."""

from typing import Any

import pytest

from coordinator.cluster import Cluster
from coordinator.rules import Bench, Resources, Rules, saturated
from lineside.signals import Load
from policies.load import load
from tests.scene import view

HEAD = "apiVersion: kinference.buoyant.io/v1alpha1\n"


def bench(document: str = "", *names: str) -> Bench:
    cluster = Cluster()
    cluster.assign([view(name).engine for name in names or ("a", "b")])
    loaded = load([("r.yaml", document.encode())]) if document else None
    resources = [each.resource for each in loaded.resources] if loaded else []
    return Rules(cluster, Resources.of(resources)).bench()


def provider(name: str, fields: str) -> str:
    return (
        f"{HEAD}kind: InferenceProvider\nmetadata: {{name: {name}}}\n"
        f"spec: {{models: [{{name: m}}], {fields}}}\n---\n"
    )


def test_a_provider_that_nothing_can_be_sent_to_is_no_target() -> None:
    document = (
        provider("plain", "type: OpenAI")
        + provider("own", "type: Databricks, baseURL: 'https://d.example/v1'")
        + provider("lost", "type: AzureOpenAI")
        + provider("nowhere", "type: Bedrock")
        + provider("foreign", "type: Anthropic")
    )
    targets = bench(document).layout.inventory.targets
    assert [target.id for target in targets] == ["a", "b", "plain", "own", "foreign"]
    addresses = {b.id: b.base_url for b in bench(document).layout.backends[2:]}
    assert addresses == {
        "plain": "https://api.openai.com/v1",
        "own": "https://d.example/v1",
        "foreign": "https://api.anthropic.com/v1",
    }


def test_who_can_be_reached_follows_what_is_heard() -> None:
    cluster = Cluster()
    a, b = view("a").engine, view("b").engine
    cluster.assign([a, b])
    assert list(cluster.reachable("m")) == [a, b]
    cluster.observe_away(a.id, "gone")
    assert list(cluster.reachable("m")) == [b]
    cluster.observe_away(a.id, "")
    assert list(cluster.reachable("m")) == [a, b]
    cluster.assign([b])
    assert (list(cluster.reachable("m")), list(cluster.reachable("n"))) == ([b], [])


def test_the_models_of_targets_are_those_of_their_inventory() -> None:
    layout = bench(provider("far", "type: OpenAI").replace("name: m", "name: n")).layout
    everything = (1 << len(layout.inventory.targets)) - 1
    assert [layout.models(mask) for mask in (0, 1, everything, 1)] == [
        (),
        ("m",),
        ("m", "n"),
        ("m",),
    ]


FULL, FREE = Load(waiting=9, kv_cache_usage=0.5), Load(waiting=0, kv_cache_usage=0.5)


@pytest.mark.parametrize(
    ("loads", "full"),
    [
        pytest.param([FULL, FULL], {"default": True}, id="all are full"),
        pytest.param([FULL, FREE], {"default": False}, id="one is not"),
        pytest.param([FULL, None], {}, id="of one nothing is known"),
        pytest.param([FREE, None], {"default": False}, id="one is known not to be"),
        pytest.param([None, None], {}, id="nothing is known"),
    ],
)
def test_a_pool_is_saturated_when_each_of_its_engines_is(
    loads: list[Load | None], full: dict[str, bool]
) -> None:
    views = [
        view(name, load=each, load_age_s=None if each is None else 0.5)
        for name, each in zip("ab", loads, strict=True)
    ]
    assert saturated(bench(), views) == full


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        pytest.param({"load_age_s": 60.0}, {}, id="an old report says nothing"),
        pytest.param({"away": "gone"}, {}, id="who is away does not count"),
    ],
)
def test_only_what_is_known_now_counts(changes: dict[str, Any], full: dict[str, bool]) -> None:
    views = [view("a", **({"load": FULL, "load_age_s": 0.5} | changes))]
    assert saturated(bench(), views) == full


def test_a_pools_price_is_its_models_else_its_servers() -> None:
    document = (
        f"{HEAD}kind: InferenceWorkerSet\nmetadata: {{name: w}}\n"
        "spec: {engines: [{url: 'http://a'}], price: {input: 3, output: 6}}\n---\n"
        f"{HEAD}kind: InferencePool\nmetadata: {{name: p}}\n"
        "spec: {models: [{name: m, price: {input: 1, output: 2}}]}\n"
    )
    prices = [price and price.input for price in bench(document).prices]
    assert prices == [1, 1]
    without = document.replace("price: {input: 1, output: 2}", "labels: {}")
    assert [price and price.input for price in bench(without).prices] == [3, None]


def test_a_provider_never_stands_in_for_an_engine_or_for_another_provider() -> None:
    document = (
        provider("a", "type: OpenAI, baseURL: 'https://x.example'")
        + provider("twin, namespace: eu", "type: OpenAI, baseURL: 'https://eu.example'")
        + provider("twin, namespace: us", "type: OpenAI, baseURL: 'https://us.example'")
        + provider("broken", "type: OpenAI, baseURL: 'http://[::1/v1'")
        + provider("keyed", "type: OpenAI, baseURL: 'https://user:word@x.example'")
    )
    layout = bench(document).layout
    assert [(each.id, each.endpoint) for each in layout.backends] == [("a", "a"), ("b", "b")]
    assert [target.type.value for target in layout.inventory.targets] == ["Local", "Local"]
