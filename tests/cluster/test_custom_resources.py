"""A coordinator's part for the cluster before a real API server: watches, its death, statuses."""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.cluster import Cluster
from coordinator.kube import reflector as reflector_module
from coordinator.kube.cluster import KubeCluster
from coordinator.kube.kept import find
from coordinator.kube.reflector import Reflector
from coordinator.kube.settings import Kubernetes
from coordinator.kube.transport import connected
from coordinator.rules import Rules
from coordinator.state.leader import Leadership
from coordinator.state.settings import EtcdAccess
from coordinator.state.store import Store
from coordinator.state.stores.opening import store_of
from coordinator.state.tenure import Tenure
from lineside.clock import SystemClock
from policies.crd import GROUP, NAMINGS, VERSION
from tests.cluster.servers import Api, api_server, wait_for
from tests.crd_cases import policy, resource
from tests.waiting import until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
PUBLISHED = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
SOON_S = 10.0


@pytest.fixture(scope="module")
def server(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An API server of this file's own, which it kills."""
    folder = tmp_path_factory.mktemp("custom")
    with api_server(tools, folder) as api:
        applied = api.kubectl("apply", "-k", ROOT / "deploy" / "crds")
        assert applied.returncode == 0, applied.stderr
        words = ("--for=condition=Established", "--timeout=30s", "crd", "--all")
        assert api.kubectl("wait", *words).returncode == 0
        yield api


@pytest.fixture
def empty(server: Api) -> Api:
    """The server without any resource."""
    for naming in NAMINGS.values():
        path = f"/apis/{GROUP}/{VERSION}/namespaces/inference/{naming.plural}"
        assert server.ask("DELETE", path).status == 200
    return server


class Scene:
    """A coordinator's part, at work."""

    def __init__(self, kube: KubeCluster, rules: Rules, clock: SystemClock) -> None:
        self.kube, self.rules, self.clock = kube, rules, clock

    @property
    def policies(self) -> dict[str, int]:
        return {each.metadata.name: each.spec.priority for each in self.rules.resources.policies}

    def lists(self) -> int:
        return self.kube.mirror.counts()["InferencePolicy"].lists


@asynccontextmanager
async def scene(api: Api, shared: Store | None = None) -> AsyncIterator[Scene]:
    """Run one; `shared` is a store that others use as well."""
    said = Kubernetes(
        access="kubeconfig", kubeconfig=str(api.kubeconfig), namespaces=("inference",)
    )
    clock, rules = SystemClock(), Rules(Cluster())
    store = shared or store_of("memory", EtcdAccess())
    connection = await connected(said)
    kube = KubeCluster(
        api=connection,
        settings=said,
        rules=rules,
        told=lambda _: None,
        follow=lambda _: None,
        store=store,
        clock=clock,
    )
    tenure = Tenure(store, clock)
    kube.stand(Leadership(store, tenure, "statuses", "me", clock))
    tasks = [asyncio.create_task(tenure.run())]
    try:
        assert await kube.start() == ()
        tasks.append(asyncio.create_task(kube.run()))
        yield Scene(kube, rules, clock)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await tenure.end()
        await connection.close()
        if shared is None:
            await store.close()


def path_of(document: Any) -> str:
    metadata = document["metadata"]
    plural = NAMINGS[document["kind"]].plural
    return f"/apis/{GROUP}/{VERSION}/namespaces/{metadata['namespace']}/{plural}"


def named(name: str, priority: int = 0, **rule: Any) -> dict[str, Any]:
    made = policy(**(rule or {"route": {}}))
    made["metadata"]["name"] = name
    made["spec"]["priority"] = priority
    return made


async def create(api: Api, document: Any) -> Any:
    answer = await asyncio.to_thread(api.ask, "POST", path_of(document), document)
    assert answer.status == 201, answer.message
    return answer.body


async def change(api: Api, document: Any, spec: Any) -> Any:
    path = f"{path_of(document)}/{document['metadata']['name']}"
    body, merge = {"spec": spec}, "application/merge-patch+json"
    answer = await asyncio.to_thread(api.ask, "PATCH", path, body, merge)
    assert answer.status == 200, answer.message
    return answer.body


async def delete(api: Api, document: Any) -> None:
    path = f"{path_of(document)}/{document['metadata']['name']}"
    assert (await asyncio.to_thread(api.ask, "DELETE", path)).status == 200


async def status(api: Api, document: Any) -> Any:
    path = f"{path_of(document)}/{document['metadata']['name']}"
    answer = await asyncio.to_thread(api.ask, "GET", path)
    return answer.body.get("status", {})


def conditions(said: Any) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in said.get("conditions", ())}


async def until_said(api: Api, document: Any, so: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(20):
        while not so(said := await status(api, document)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return said


async def test_what_is_created_changed_and_deleted_is_in_force(empty: Api) -> None:
    async with scene(empty) as s:
        made = named("one", 1)
        await create(empty, made)
        taken = await until(lambda: s.policies == {"one": 1})
        await change(empty, made, {"priority": 2})
        changed = await until(lambda: s.policies == {"one": 2})
        await delete(empty, made)
        gone = await until(lambda: s.policies == {})
        print(f"created {taken:.3f} s, changed {changed:.3f} s, deleted {gone:.3f} s")
        assert s.lists() == 1  # all by the watch


async def test_published_policies_are_accepted_unchanged(empty: Api) -> None:
    documents = [
        each
        for path in PUBLISHED
        for each in yaml.safe_load_all(path.read_text())
        if each["kind"] == "InferencePolicy"
    ]
    async with scene(empty) as s:
        for each in documents:
            each["metadata"].setdefault("namespace", "inference")
            await create(empty, each)
        names = {each["metadata"]["name"] for each in documents}
        assert len(names) >= 3
        await until(lambda: set(s.policies) == names)
        for each in documents:
            said = await until_said(empty, each, lambda said: "Accepted" in conditions(said))
            assert conditions(said)["Accepted"] == ("True", "Accepted"), said
            assert conditions(said)["Programmed"] == ("True", "Programmed")


async def test_a_bad_form_changes_nothing_and_the_status_says_why(empty: Api) -> None:
    async with scene(empty) as s:
        made = named("one", 1)
        await create(empty, made)
        await until(lambda: s.policies == {"one": 1})
        rules = [{"name": "a", "route": {}}, {"name": "a", "route": {}}]
        await change(empty, made, {"priority": 5, "rules": rules})
        said = await until_said(
            empty, made, lambda said: conditions(said).get("Accepted", ("",))[0] == "False"
        )
        assert s.policies == {"one": 1} and s.kube.rejected
        assert conditions(said) == {
            "Accepted": ("False", "Invalid"),
            "ResolvedRefs": ("True", "ResolvedRefs"),
            "Programmed": ("False", "EarlierGeneration"),
        }
        assert {each["observedGeneration"] for each in said["conditions"]} == {2}
        assert said["conditions"][0]["message"].startswith(
            "spec.rules[1].name: duplicate-name: there are two rules called `a`"
        )
        assert said["inForce"] == {"generation": 1, "spec": made["spec"]}
    async with scene(empty) as restarted:  # whose memory is gone
        assert restarted.policies == {"one": 1} and restarted.kube.rejected
        await change(empty, made, {"priority": 6, "rules": rules[:1]})
        await until(lambda: restarted.policies == {"one": 6})
        said = await until_said(empty, made, lambda said: conditions(said)["Accepted"][0] == "True")
        assert "inForce" not in said and not restarted.kube.rejected


async def test_a_bad_form_of_a_new_object_keeps_only_itself_out(empty: Api) -> None:
    async with scene(empty) as s:
        bad = named("bad", reject={"message": "x"}, limits=[])
        bad["spec"]["rules"].append(bad["spec"]["rules"][0])
        await create(empty, bad)
        await create(empty, named("good"))
        await until(lambda: s.policies == {"good": 0})
        said = await until_said(empty, bad, lambda said: "Programmed" in conditions(said))
        assert conditions(said)["Programmed"] == ("False", "Invalid")
        await delete(empty, bad)
        await until(lambda: not s.kube.rejected)


async def test_a_kept_form_has_its_nulls(empty: Api) -> None:
    parameters = {"seed": 1, "stop": None, "x": {"y": [None, 1.5]}}
    async with scene(empty) as s:
        made = named("nulls", route={"set": {"parameters": parameters}})
        stored = (await create(empty, made))["spec"]
        await until(lambda: "nulls" in s.policies)
        rules = [{"name": "a", "route": {}}, {"name": "a", "route": {}}]
        await change(empty, made, {"rules": rules})
        said = await until_said(empty, made, lambda said: "inForce" in said)
        assert said["inForce"]["spec"] == stored
        writes = s.kube.statuses.counts["written"]
        await asyncio.sleep(2.5)
        assert s.kube.statuses.counts["written"] == writes  # what is said is not said again


async def test_a_deletion_while_the_server_is_dead_is_seen_soon_after(
    empty: Api, tmp_path: Path
) -> None:
    async with scene(empty) as s:
        for name in ("stays", "goes"):
            await create(empty, named(name))
        await until(lambda: set(s.policies) == {"stays", "goes"})
        empty.process.kill()
        noticed = await until(lambda: bool(s.kube.away))
        assert set(s.policies) == {"stays", "goes"}
        await asyncio.sleep(4)  # so that it waits as long between tries as it ever does
        empty.process.start()
        await asyncio.to_thread(wait_for, empty, tmp_path)
        await asyncio.to_thread(_until_served, empty)
        assert empty.ask("DELETE", f"{path_of(named('goes'))}/goes").status == 200
        back = await until(lambda: set(s.policies) == {"stays"} and not s.kube.away)
        await create(empty, named("new"))
        taken = await until(lambda: set(s.policies) == {"stays", "new"})
        print(f"away after {noticed:.2f} s, gone after {back:.2f} s, new after {taken:.3f} s")
        assert noticed < 1 and back < 5 and taken < 1


async def test_a_server_that_hangs_is_away_and_its_watches_go_on(empty: Api) -> None:
    async with scene(empty) as s:
        await create(empty, named("one"))
        await until(lambda: "one" in s.policies)
        empty.process.pause()
        try:
            noticed = await until(lambda: bool(s.kube.away), 20)
            assert set(s.policies) == {"one"}
        finally:
            empty.process.resume()
        back = await until(lambda: not s.kube.away, 20)
        await create(empty, named("two"))
        await until(lambda: "two" in s.policies)
        print(f"a server that hangs is away after {noticed:.1f} s, back after {back:.1f} s")


async def test_a_coordinator_starts_without_the_server_by_what_the_store_keeps(
    empty: Api, tmp_path: Path
) -> None:
    store = store_of("memory", EtcdAccess())
    async with scene(empty, store) as s:
        await create(empty, named("kept"))
        await until(lambda: "kept" in s.policies)
        await until_kept(store, "kept")
    empty.process.kill()
    began = time.monotonic()
    async with scene(empty, store) as s:
        started = time.monotonic() - began
        assert set(s.policies) == {"kept"} and s.kube.away
        assert [code for code, _ in s.kube.degraded()] == ["resources_kept"]
        empty.process.start()
        await asyncio.to_thread(wait_for, empty, tmp_path)
        await asyncio.to_thread(_until_served, empty)
        await create(empty, named("new"))
        await until(lambda: set(s.policies) == {"kept", "new"}, 10)
        assert list(s.kube.degraded()) == []
    empty.process.pause()
    began = time.monotonic()
    try:
        async with scene(empty, store) as s:
            hung = time.monotonic() - began
            assert "kept" in s.policies and s.kube.kept_age_s is not None
    finally:
        empty.process.resume()
        await store.close()
    print(f"started after {started:.1f} s before a dead server, {hung:.1f} s before one that hangs")
    assert started < 10 and hung < 30


async def until_kept(store: Store, name: str) -> None:
    async def is_kept() -> bool:
        found = await find(store, ["inference"], time.time())
        return found.kept is not None and name in [each.name for each in found.kept.objects]

    await until(is_kept, 20)


def _until_served(api: Api) -> None:
    """Wait until the server knows its definitions again."""
    _until(lambda: api.ask("GET", path_of(named("x"))).status == 200)


def _until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not so():
        assert time.monotonic() < end
        time.sleep(0.05)


@asynccontextmanager
async def following(api: Api, kind: str) -> AsyncIterator[tuple[Reflector[Any], list[str]]]:
    """One reflector, and the lines that its watches bring."""
    said = Kubernetes(access="kubeconfig", kubeconfig=str(api.kubeconfig))
    connection, lines = await connected(said), list[str]()

    class Heard:
        """The connection, listened in on."""

        ask, close = connection.ask, connection.close

        async def watch(self, *arguments: Any) -> AsyncGenerator[bytes, None]:
            async with aclosing(connection.watch(*arguments)) as watch:
                async for line in watch:
                    lines.append(line.decode())
                    yield line

    path = f"/apis/{GROUP}/{VERSION}/namespaces/inference/{NAMINGS[kind].plural}"
    reflector = Reflector(
        api=Heard(),
        path=path,
        read=dict,
        clock=SystemClock(),
        rng=random.Random(0),
        changed=lambda: None,
    )
    try:
        yield reflector, lines
    finally:
        await connection.close()


async def test_a_revision_that_is_gone_is_healed_by_a_list(empty: Api) -> None:
    await create(empty, named("one"))
    async with following(empty, "InferencePolicy") as (reflector, lines):
        await reflector.prime()
        await create(empty, named("two"))
        reflector.copy.revision = "1"  # of before this server's memory
        task = asyncio.create_task(reflector.run())
        await until(lambda: len(reflector.copy.objects) == 2)
        assert '"code":410' in lines[1] and reflector.lists == 2
        await create(empty, named("three"))
        await until(lambda: len(reflector.copy.objects) == 3)
        assert reflector.lists == 2
        task.cancel()


async def test_a_watch_that_ends_goes_on_from_its_bookmark(
    empty: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "WATCH_S", 5.0)
    async with following(empty, "InferencePool") as (reflector, lines):
        task = asyncio.create_task(reflector.run())
        await until(lambda: reflector.watches == 1)
        listed = int(reflector.copy.revision or 0)
        elsewhere = resource("InferencePool", {}, "elsewhere")
        elsewhere["metadata"]["namespace"] = "other"
        await create(empty, elsewhere)  # moves the kind's revision, and is nobody's event here
        await until(lambda: any('"BOOKMARK"' in line for line in lines), 20)
        await until(lambda: reflector.watches > 1, 20)
        assert int(reflector.copy.revision or 0) > listed
        await create(empty, resource("InferencePool", {}, "late"))
        await until(lambda: len(reflector.copy.objects) == 1)
        assert (reflector.lists, reflector.failures) == (1, 0)
        task.cancel()
        await delete(empty, elsewhere)


async def test_others_who_write_the_status_are_no_hindrance(empty: Api) -> None:
    async with scene(empty) as s:
        made = named("busy")
        await create(empty, made)
        await until_said(empty, made, lambda said: "Accepted" in conditions(said))
        path = f"{path_of(made)}/busy/status"
        foreign = {
            "type": "Audited",
            "status": "True",
            "reason": "Seen",
            "message": "by somebody",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }

        def interfere() -> None:
            for number in range(40):
                foreign["reason"] = f"Seen{number}"
                said = empty.ask("GET", path).body
                said["status"]["conditions"] = [
                    *(c for c in said["status"]["conditions"] if c["type"] != "Audited"),
                    foreign,
                ]
                empty.ask("PUT", path, said)

        writing = asyncio.create_task(asyncio.to_thread(interfere))
        for priority in range(1, 6):
            await change(empty, made, {"priority": priority})
            await asyncio.sleep(0.2)
        await writing
        await until_said(
            empty,
            made,
            lambda said: (
                {
                    each.get("observedGeneration")
                    for each in said["conditions"]
                    if each["type"] != "Audited"
                }
                == {6}
            ),
        )
        said = await status(empty, made)
        assert conditions(said)["Audited"][1].startswith("Seen")
        print(f"writes: {dict(s.kube.statuses.counts)}")


async def test_of_two_coordinators_one_writes_and_the_other_follows_it(empty: Api) -> None:
    store = store_of("memory", EtcdAccess())
    async with scene(empty, store) as other:
        async with scene(empty, store) as leader:
            await create(empty, named("one"))
            await until(lambda: leader.policies == other.policies == {"one": 0})
            await until_said(empty, named("one"), lambda said: "Accepted" in conditions(said))
            counts = [each.kube.statuses.counts for each in (leader, other)]
            await until(lambda: any(counts))
            assert sorted(map(bool, counts)) == [False, True]
        made = named("two")
        await create(empty, made)
        said = await until_said(empty, made, lambda said: "Accepted" in conditions(said))
        assert conditions(said)["Programmed"][0] == "True"
    await store.close()


GATEWAY_API = "inference.networking.k8s.io"


async def test_pools_of_the_gateway_api_are_read_once_they_are_installed(empty: Api) -> None:
    names = {"plural": "inferencepools", "singular": "inferencepool", "kind": "InferencePool"}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"inferencepools.{GATEWAY_API}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": GATEWAY_API,
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    path = f"/apis/{GATEWAY_API}/v1/namespaces/inference/inferencepools"
    pool = {
        "apiVersion": f"{GATEWAY_API}/v1",
        "kind": "InferencePool",
        "metadata": {"name": "qwen"},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]},
    }
    async with scene(empty) as s:
        assert empty.ask("POST", crds, definition).status == 201
        await asyncio.to_thread(_until, lambda: empty.ask("POST", path, pool).status == 201)
        taken = await until(
            lambda: [each.metadata.name for each in s.rules.resources.pools] == ["qwen"], 15
        )
        print(f"a kind that was installed is read after {taken:.1f} s")
        assert empty.ask("DELETE", f"{path}/qwen").status == 200
        await until(lambda: s.rules.resources.pools == ())
    assert empty.ask("DELETE", f"{crds}/inferencepools.{GATEWAY_API}").status == 200


async def test_a_key_outside_of_the_folder_is_refused(empty: Api) -> None:
    async with scene(empty) as s:
        spec = {
            "type": "OpenAI",
            "models": [{"name": "m"}],
            "credentials": {"file": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
        }
        made = resource("InferenceProvider", spec, name="thief")
        await create(empty, made)
        said = await until_said(empty, made, lambda said: "Accepted" in conditions(said))
        assert conditions(said)["Accepted"] == ("False", "Invalid")
        assert "spec.credentials.file: key-not-allowed" in said["conditions"][0]["message"]
        assert s.rules.providers == {}


async def test_a_kind_that_is_not_there_is_no_hindrance(empty: Api) -> None:
    async with scene(empty) as s:  # this server has no pods and no pools of the Gateway API
        shown = s.kube.shown()["cluster"]
        assert isinstance(shown, dict) and shown["away"] == "" and shown["missing"] == []


def test_what_is_shown_is_json(empty: Api) -> None:
    async def shown() -> dict[str, object]:
        async with scene(empty) as s:
            return s.kube.shown()

    assert json.loads(json.dumps(asyncio.run(shown())))["rejected"] is False
