"""What a coordinator follows of a cluster: resources, pods, pools, and what it says of them."""

import pytest

from coordinator.kube import custom_resources, pod_engines
from tests.kube_coordinator import BAD, GOOD, Scene, running
from tests.kube_memory import GATEWAY, PODS, POLICIES, POOLS, SETS, Server, pod
from tests.waiting import until


async def test_what_is_there_at_the_start_is_in_force_before_anything_is_served() -> None:
    server = Server()
    server.put(POLICIES, "a", GOOD)
    server.put(SETS, "s", {"selector": {"app": "vllm"}})
    server.put(PODS, "p", **pod(app="vllm"))
    scene = Scene(server)
    assert await scene.kube.start() == ()
    assert scene.policies == ["a"]
    assert [spec.url for spec in scene.pods] == ["http://10.0.0.1:8000"]
    assert scene.told == [scene.rules.resources]


async def test_a_start_without_the_cluster_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_resources, "START_S", 0.2)
    server = Server()
    server.away = True
    (found,) = await Scene(server).kube.start()
    assert str(found).startswith("the cluster: unreadable: ")
    assert found.message.endswith(": cannot connect; the store keeps nothing of it")


async def test_definitions_that_are_not_installed_are_named() -> None:
    server = Server()
    server.missing = {POOLS, GATEWAY}
    async with running(server) as s:
        shown = s.kube.shown()["cluster"]
        assert isinstance(shown, dict)
        assert (shown["missing"], shown["away"]) == (["inferencepools"], "")


async def test_pods_follow_the_worker_sets_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_engines, "LOOK_S", 60.0)  # changes are heard of
    server = Server()
    server.put(PODS, "p", **pod(app="vllm", tier="gold"))
    async with running(server) as s:
        assert s.pods == {}
        server.put(SETS, "s", {"selector": {"app": "vllm"}, "ports": {"http": 9000}})
        await until(lambda: [spec.url for spec in s.pods] == ["http://10.0.0.1:9000"])
        server.put(PODS, "p", **pod(False, app="vllm"))
        await until(lambda: [each.unfit for each in s.pods.values()] == ["its pod is not ready"])
        server.put(SETS, "s", {"selector": {"app": 7}})  # which no cluster would take
        await until(lambda: s.kube.rejected)
        assert [spec.url for spec in s.pods] == ["http://10.0.0.1:9000"]
        server.drop(PODS, "p")
        await until(lambda: s.pods == {})


async def test_the_gateways_pools_are_pools() -> None:
    server = Server()
    server.put(PODS, "p", **pod(app="vllm"))
    async with running(server) as s:
        spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]}
        server.put(GATEWAY, "qwen", spec)
        await until(lambda: len(s.pods) == 1)
        assert [each.metadata.name for each in s.rules.resources.pools] == ["qwen"]
        server.drop(GATEWAY, "qwen")
        await until(lambda: s.pods == {} and s.rules.resources.pools == ())


def said(server: Server, name: str) -> dict[str, tuple[str, str]]:
    conditions = server.statuses.get(name, {}).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in conditions}


async def test_what_was_rolled_back_says_so_until_something_changes() -> None:
    server = Server()
    server.put(POLICIES, "a", GOOD)
    async with running(server) as s:
        await until(lambda: said(server, "a").get("Programmed") == ("True", "Programmed"))
        server.put(POLICIES, "b", GOOD)
        await until(lambda: s.policies == ["a", "b"])
        assert s.rules.roll_back()
        await until(lambda: said(server, "a")["Programmed"] == ("False", "RolledBack"))
        assert s.policies == ["a"]
        server.put(POLICIES, "c", GOOD)
        await until(lambda: s.policies == ["a", "b", "c"])
        await until(lambda: said(server, "a")["Programmed"] == ("True", "Programmed"))


async def test_an_end_of_a_bad_form_is_an_end_of_being_rejected() -> None:
    server = Server()
    async with running(server) as s:
        server.put(POLICIES, "a", BAD)
        await until(lambda: s.kube.rejected and s.kube.refused == 1)
        assert s.policies == [] and [each.code for each in s.kube.findings] == ["duplicate-name"]
        await until(lambda: said(server, "a").get("Accepted") == ("False", "Invalid"))
        server.drop(POLICIES, "a")
        await until(lambda: not s.kube.rejected)
        assert s.kube.findings == ()
