"""How the doctor looks at a cluster: other namespaces, long lists, odd objects, named ports."""

from collections.abc import Mapping
from typing import Any

import pytest

from cli.kube.api import Answer
from cli.kube.judge import judged
from cli.kube.look import look
from tests.kube_scenes import (
    CORE,
    CRDS,
    NOW,
    NS,
    POLICIES,
    SETS,
    Scripted,
    examined,
    healthy,
    listed,
    said_in,
    silent,
    vllm,
)


async def test_what_a_pod_does_not_say_itself_is_its_command_lines_word() -> None:
    answers = healthy()
    silent(vllm(ready=False))(answers)
    reports = judged(await look(Scripted(answers, set()), NS), "0.1.0", NOW)
    (events,) = (check for check in reports[-1].checks if check.code == "events")
    assert (events.level, events.message) == (
        "ok",
        "by its command line events are published at tcp://*:5557",
    )
    assert {**reports[-1].to_json(), "checks": ()} == {
        "part": f"engine {NS}/vllm-a-0",
        "reached": False,
        "problems": 1,
        "checks": (),
    }


async def test_engines_of_other_namespaces_are_found_by_their_worker_sets() -> None:
    answers = healthy()
    answers[SETS] = listed(
        {"metadata": {"name": "far", "namespace": "ml"}, "spec": {"selector": {"app": "vllm"}}}
    )
    far = vllm()
    far["metadata"] = {**far["metadata"], "namespace": "ml"}
    answers["/api/v1/namespaces/ml/pods"] = listed(far)
    seen = await look(Scripted(answers, set()), NS)
    assert [(server.name, server.worker_set) for server in seen.servers] == [
        (f"{NS}/vllm-a-0", ""),
        ("ml/vllm-a-0", "far"),
    ]


async def test_in_a_namespace_without_lineside_it_is_said_where_it_runs() -> None:
    answers = healthy() | {"/api/v1/namespaces/nowhere/pods": listed()}
    reports = judged(await look(Scripted(answers, set()), "nowhere"), "0.1.0", NOW)
    (found,) = (each for each in said_in(reports) if each[0] == "coordinators")
    assert found[2:] == (
        "no coordinator runs in nowhere",
        "it runs in lineside: name that with -n",
    )
    assert "rights" not in [report.name for report in reports]


def without_lineside() -> dict[str, Any]:
    answers = healthy() | {CRDS: listed(), SETS: Answer(404), f"{CORE}/pods": listed(vllm())}
    return answers | {f"/apis/apps/v1/namespaces/{NS}/daemonsets": listed()}


async def test_before_it_is_installed_that_is_all_that_is_said_of_lineside() -> None:
    said = await examined(without_lineside())
    assert [each[:3] for each in said] == [
        ("coordinators", "problem", "Lineside is not installed in lineside")
    ]
    assert "helm upgrade --install lineside deploy/charts/lineside -n lineside" in said[0][3]
    reports = judged(await look(Scripted(without_lineside(), set()), NS), "0.1.0", NOW)
    assert [each.name for each in reports] == ["cluster", "coordinators", f"engine {NS}/vllm-a-0"]


async def test_what_cannot_be_seen_is_not_said_to_be_absent() -> None:
    hidden = {f"/apis/apps/v1/namespaces/{NS}/daemonsets": Answer(403)}
    said = await examined(without_lineside() | hidden)
    assert "Lineside is not installed in lineside" not in [each[2] for each in said]
    assert "no coordinator runs in lineside" in [each[2] for each in said]


class Paged(Scripted):
    """Hands out a list of pods one at a time."""

    async def get(self, path: str, query: Mapping[str, str] = {}) -> Answer:
        answer = await super().get(path, query)
        if path != f"{CORE}/pods":
            return answer
        assert query["limit"] == "500"
        at = int(query.get("continue") or 0)
        rest = str(at + 1) if at + 1 < len(answer.items) else ""
        body = {"metadata": {"continue": rest}, "items": answer.items[at : at + 1]}
        return Answer(200, body, answer.at)


async def test_lists_are_read_in_parts() -> None:
    api, whole = Paged(healthy(), set()), Scripted(healthy(), set())
    assert judged(await look(api, NS), "0.1.0", NOW) == judged(await look(whole, NS), "0.1.0", NOW)
    assert api.asked.count(f"{CORE}/pods") == len(healthy()[f"{CORE}/pods"]["items"]) > 1


async def test_of_a_list_that_does_not_end_the_first_members_are_looked_at() -> None:
    answers = healthy()
    answers[f"{CORE}/pods"] |= {"metadata": {"continue": "more"}}
    seen = await look(Scripted(answers, set()), NS)
    assert [(each.what, each.is_cut) for each in seen.blinds] == [(f"pods of {NS}", True)]
    assert (
        "cluster",
        "warning",
        f"of pods of {NS} the first ones alone were looked at",
    ) in [each[:3] for each in said_in(judged(seen, "0.1.0", NOW))]


ODD: list[Any] = [
    None,
    "a pod",
    {},
    {"metadata": {"name": "no-namespace"}, "spec": {"containers": [{"name": "c"}]}},
    {"metadata": {"name": "none", "namespace": NS}, "spec": {"containers": []}},
    {"metadata": {"name": "n", "namespace": NS, "labels": ["l"]}, "spec": {"containers": [{}]}},
]


@pytest.mark.parametrize(
    ("path", "what", "odd"),
    [
        (f"{CORE}/pods", f"pods of {NS}", ODD),
        (SETS, "worker sets", [*ODD[:4], {"metadata": {"name": "s", "namespace": NS}, "spec": 1}]),
        (POLICIES, "NetworkPolicies", ODD[:4]),
        (CRDS, "the definitions of kinds", ODD[:3]),
    ],
)
async def test_objects_that_are_odd_are_left_out_and_counted(
    path: str, what: str, odd: list[Any]
) -> None:
    answers = healthy()
    answers[path]["items"] += odd
    found = await examined(answers)
    text = f"{len(odd)} of {what} are not what such objects are, and left out"
    assert [each[:3] for each in found] == [("cluster", "warning", text)]


async def test_what_is_null_is_not_there() -> None:
    answers = healthy()
    for each in answers[f"{CORE}/pods"]["items"]:
        each["metadata"]["annotations"] = each["spec"]["volumes"] = None
    assert not (await look(Scripted(answers, set()), NS)).blinds


async def test_processes_are_asked_at_the_ports_that_their_pods_name() -> None:
    answers = healthy()
    (ours,) = (
        each
        for each in answers[f"{CORE}/pods"]["items"]
        if each["metadata"]["name"] == "lineside-agent-0"
    )
    ours["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 7001}]
    api = Scripted(answers, set())
    await look(api, NS)
    assert [path for path in api.asked if "lineside-agent-0" in path] == [
        f"{CORE}/pods/lineside-agent-0:7001/proxy/metrics"
    ]
