"""What the store keeps of a cluster: written while it is there, begun with while it is away."""

import asyncio
import json
import re
import zlib
from pathlib import Path

import pytest

from coordinator.kube import cluster, custom_resources
from coordinator.kube import kept as keeping
from coordinator.kube.kept import KEY, SEEN, Keeper, Kept
from coordinator.rules import Resources
from coordinator.state.store import Delete, Store
from coordinator.state.stores.sqlite import SqliteStore
from tests.kube_coordinator import BAD, GOOD, Leading, Scene, running
from tests.kube_memory import GATEWAY, PODS, POLICIES, SETS, Server, pod
from tests.manual_clock import ManualClock
from tests.waiting import until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_resources, "KEPT_START_S", 0.05)
    monkeypatch.setattr(custom_resources, "START_S", 0.3)
    monkeypatch.setattr(custom_resources, "LOOK_S", 0.05)
    monkeypatch.setattr(cluster, "CHANGED_S", 0.02)


async def kept(server: Server) -> Store:
    """Return a store that a coordinator of this cluster has left."""
    store = SqliteStore(":memory:")
    async with running(server, store):
        await until(lambda: store.get(SEEN))
    return store


def whole() -> Server:
    """Return a server with one of everything, a form that is refused among it."""
    server = Server()
    server.put(POLICIES, "a", GOOD)
    server.put(POLICIES, "b", BAD)
    server.put(SETS, "s", {"selector": {"app": "vllm"}})
    server.put(PODS, "p", **pod(app="vllm"))
    gateway = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 9000}]}
    server.put(GATEWAY, "qwen", gateway)
    return server


@pytest.mark.usefixtures("quick")
async def test_a_start_without_the_cluster_begins_with_what_the_store_keeps() -> None:
    server = whole()
    store = await kept(server)
    server.away = True
    async with running(server, store) as s:
        assert s.policies == ["a"]
        assert [each.metadata.name for each in s.rules.resources.pools] == ["qwen"]
        urls = ["http://10.0.0.1:8000", "http://10.0.0.1:9000"]
        assert sorted(spec.url for spec in s.pods) == urls
        assert s.told[0] == s.rules.resources
        ((code, text),) = s.kube.degraded()
        assert (code, text[:47]) == (
            "resources_kept",
            "resources and pods are from the store, as they ",
        )
        assert s.kube.away.endswith(": cannot connect")
        assert str(s.kube.shown()["source"]).endswith("(n), as the store keeps them")
        await asyncio.sleep(0.2)  # an empty copy is no word of the cluster's
        assert (s.policies, len(s.pods), server.statuses["a"]["conditions"] != ()) == (
            ["a"],
            2,
            True,
        )


@pytest.mark.usefixtures("quick")
async def test_the_cluster_s_word_counts_as_soon_as_it_is_back() -> None:
    server = whole()
    store = await kept(server)
    server.away = True
    async with running(server, store) as s:
        server.drop(POLICIES, "a")
        server.put(POLICIES, "c", GOOD)
        server.drop(PODS, "p")
        server.away = False
        await until(lambda: s.policies == ["c"] and s.pods == {})
        assert list(s.kube.degraded()) == []
        assert s.kube.kept_age_s is None
        assert not s.rules.roll_back()  # to what the store kept nobody goes back


@pytest.mark.usefixtures("quick")
async def test_a_cluster_that_lost_everything_meanwhile_is_believed() -> None:
    server = whole()
    store = await kept(server)
    server.away = True
    async with running(server, store) as s:
        for path, name in (
            (POLICIES, "a"),
            (POLICIES, "b"),
            (SETS, "s"),
            (PODS, "p"),
            (GATEWAY, "qwen"),
        ):
            server.drop(path, name)
        server.away = False
        await until(lambda: s.rules.resources == Resources() and s.pods == {})


@pytest.mark.usefixtures("quick")
async def test_a_form_that_was_refused_stays_refused_and_the_last_good_one_in_force() -> None:
    server = Server()
    server.put(POLICIES, "a", GOOD)
    store = SqliteStore(":memory:")
    async with running(server, store) as s:
        server.put(POLICIES, "a", BAD)
        await until(lambda: s.kube.rejected)
        await until(lambda: store.get(KEY))
    server.away = True
    server.statuses.clear()
    async with running(server, store) as s:
        assert (s.policies, s.kube.rejected) == (["a"], False)
        server.away = False
        await until(lambda: s.kube.rejected)
        assert s.policies == ["a"]


@pytest.mark.usefixtures("quick")
async def test_keys_that_are_not_allowed_are_not_read_by_the_store_s_word() -> None:
    server = whole()
    store = await kept(server)
    stored = await store.get(KEY)
    assert stored is not None
    said = json.loads(zlib.decompress(stored.value))
    for spec, _ in said["servers"]:
        spec["api_key_file"] = "/var/run/secrets/token"
    provider = {
        "models": [{"name": "m"}],
        "type": "OpenAI",
        "credentials": {"file": "/var/run/secrets/token"},
    }
    document = {
        "apiVersion": "kinference.buoyant.io/v1alpha1",
        "kind": "InferenceProvider",
        "metadata": {"name": "p", "namespace": "n"},
        "spec": provider,
    }
    made = {**said["objects"][0], "kind": "InferenceProvider", "name": "p"}
    said["objects"].append({**made, "document": json.dumps(document)})
    await store.compare_and_set(KEY, stored.revision, zlib.compress(json.dumps(said).encode()))
    server.away = True
    async with running(server, store) as s:
        assert {spec.api_key_file for spec in s.pods} == {None}
        (found,) = [each for each in s.kube.findings if each.severity == "error"]
        assert found.code == "key-not-allowed"
        assert (s.rules.resources.providers, s.policies) == ((), ["a"])


async def rewritten(store: Store, key: str, value: bytes) -> None:
    stored = await store.get(key)
    assert stored is not None
    await store.compare_and_set(key, stored.revision, value)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        pytest.param(SEEN, b"1000000000.0", r"seen \d+ hours ago", id="old"),
        pytest.param(SEEN, b"1e15", r"seen [\d.]+ hours from now: a clock is wrong", id="to come"),
        pytest.param(SEEN, b"1e999", "cannot be read", id="never"),
        pytest.param(KEY, b"what is this", "cannot be read", id="rubbish"),
        pytest.param(KEY, zlib.compress(b"{}"), "cannot be read", id="another form"),
        pytest.param(KEY, zlib.compress(b" " * 2**27), "cannot be read", id="without end"),
        pytest.param(
            KEY, zlib.compress(b'{"namespaces":["n"]}')[:-2], "cannot be read", id="cut off"
        ),
        pytest.param(
            KEY, zlib.compress(b'{"namespaces":["m"]}'), "of other namespaces", id="of others"
        ),
    ],
)
async def test_what_cannot_be_begun_with_is_said(key: str, value: bytes, why: str) -> None:
    server = whole()
    store = await kept(server)
    await rewritten(store, key, value)
    server.away = True
    (found,) = await Scene(server, store).kube.start()
    assert re.search(f": cannot connect; what the store keeps of it .*{why}", found.message)


@pytest.mark.usefixtures("quick")
async def test_a_store_that_is_away_too_is_said(tmp_path: Path) -> None:
    server = Server()
    server.away = True
    store = SqliteStore(str(tmp_path / "no folder" / "state.db"))
    (found,) = await Scene(server, store).kube.start()
    assert found.message.endswith("cannot connect; the store is away, too")


async def test_a_slow_cluster_gets_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CHANGED_S", 0.02)
    monkeypatch.setattr(custom_resources, "KEPT_START_S", 0.02)
    server = whole()
    store = await kept(server)
    server.drop(POLICIES, "a")
    server.slow_s = 0.3
    async with running(server, store) as s:
        assert (s.policies, list(s.kube.degraded())) == ([], [])


@pytest.mark.usefixtures("quick")
async def test_what_is_kept_follows_what_is_in_force_and_is_written_seldom() -> None:
    server, store = whole(), SqliteStore(":memory:")
    async with running(server, store) as s:
        await until_kept(store, ["a"])
        revision = await store.revision()
        await asyncio.sleep(0.2)  # ten looks
        assert await store.revision() == revision
        server.put(POLICIES, "c", GOOD)
        await until_kept(store, ["a", "c"])
        stored = await store.get(KEY)
        assert stored is not None
        await store.transact({}, [Delete(KEY), Delete(SEEN)])  # the store is wiped
        s.kube.remake()
        await until_kept(store, ["a", "c"])


@pytest.mark.usefixtures("quick")
async def test_what_another_coordinator_wrote_is_not_vouched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeping, "SEEN_S", 0.05)
    store = SqliteStore(":memory:")
    async with running(whole(), store):
        await until_kept(store, ["a"])
        await rewritten(store, KEY, zlib.compress(b'{"namespaces":["n"],"objects":[]}'))
        await until_kept(store, ["a"])


async def test_who_leads_again_writes_at_once_what_another_may_have_changed() -> None:
    store, said = SqliteStore(":memory:"), Kept(("n",))
    leading = Leading(store)
    keeper = Keeper(leading, ManualClock())  # type: ignore[arg-type]
    await keeper.keep(said)
    ours = await store.get(KEY)
    assert ours is not None
    leading.leads = False
    await keeper.keep(said)
    await rewritten(store, KEY, b"another's")
    leading.leads = True
    await keeper.keep(said)
    now = await store.get(KEY)
    assert now is not None and now.value == ours.value


@pytest.mark.usefixtures("quick")
async def test_what_is_too_large_is_said_once_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "MOST_BYTES", 100)
    store = SqliteStore(":memory:")
    async with running(whole(), store):
        await until(lambda: "what is in force is not kept" in caplog.text)
        await asyncio.sleep(0.2)  # ten looks
        assert (caplog.text.count("is not kept"), await store.get(SEEN)) == (1, None)


async def until_kept(store: Store, policies: list[str]) -> None:
    async def are_kept() -> bool:
        return await _policies_in(store) == policies

    await until(are_kept)


async def _policies_in(store: Store) -> list[str]:
    if (stored := await store.get(KEY)) is None:
        return []
    said = json.loads(zlib.decompress(stored.value))
    return [each["name"] for each in said["objects"] if each["kind"] == "InferencePolicy"]
