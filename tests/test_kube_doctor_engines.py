"""What the doctor says of engines in a cluster, their worker sets and the networks between."""

from collections.abc import Callable
from typing import Any

import pytest

from cli.checks import events_flag
from tests.kube_scenes import (
    AGENT,
    AGENTS_ALONE,
    ARGS,
    BOTH,
    CORE,
    ENGINE,
    NS,
    POLICIES,
    READS,
    SETS,
    changed,
    component,
    configured,
    listed,
    metrics,
    one_thing_wrong,
    pods,
    policy,
    settings,
    silent,
    vllm,
    without,
)

PROBLEMS: dict[str, tuple[Callable[[dict[str, Any]], None], str, str, str, str]] = {
    "a network that is open": (
        changed(POLICIES, listed(policy("e", {"app": "vllm"}, AGENTS_ALONE, BOTH))),
        "network",
        "warning",
        "no NetworkPolicy is about the coordinators",
        "networkPolicies.enabled",
    ),
    "events for everybody": (
        changed(
            POLICIES,
            listed(policy("c", component("coordinator")), policy("a", component("agent"))),
        ),
        "engine",
        "warning",
        "anybody in the cluster may read its KV events, which carry prompts' token ids",
        "networkPolicies.engines.selector",
    ),
    "events for nobody": (
        changed(
            POLICIES,
            listed(
                policy("c", component("coordinator")),
                policy("a", component("agent")),
                policy("e", {"app": "vllm"}, BOTH),
            ),
        ),
        "engine",
        "problem",
        "a NetworkPolicy keeps agents from its event ports",
        "let the agents' pods in",
    ),
    "an engine on a node without an agent": (
        pods(vllm(node="node-z")),
        "engine",
        "problem",
        "no agent runs on its node node-z",
        "agent.tolerations",
    ),
    "an engine that is not ready": (
        pods(vllm(ready=False)),
        "engine",
        "problem",
        "its pod is not ready: running",
        "kubectl -n lineside logs vllm-a-0",
    ),
    "GPUs that an agent cannot read": (
        lambda answers: (
            pods(vllm(*ARGS, runtimeClassName="x"))(answers),
            answers[f"{CORE}/pods"]["items"][-1]["spec"]["containers"][0].update(
                resources={"limits": {"nvidia.com/gpu": "1"}}
            ),
            answers.update({f"{AGENT}/metrics": metrics("lineside_gpu_available 0")}),
        ),
        "engine",
        "warning",
        "it has GPUs, and the agent on its node cannot read them",
        "agent.gpu.runtimeClass",
    ),
    "no prefix caching": (
        silent(vllm("--no-enable-prefix-caching", *without("--enable-prefix"))),
        "engine",
        "problem",
        "prefix caching is off",
        "add --enable-prefix-caching",
    ),
    "no prefix caching, says the engine": (
        changed(f"{ENGINE}/metrics", 'vllm:cache_config_info{enable_prefix_caching="False"} 1\n'),
        "engine",
        "problem",
        "prefix caching is off",
        "add --enable-prefix-caching",
    ),
    "blocks that do not fit": (
        silent(vllm("--block-size=8", *ARGS)),
        "engine",
        "problem",
        "its blocks have 8 tokens, which is no multiple of 16",
        "add --block-size 16",
    ),
    "no word on cached tokens": (
        pods(vllm(*without("--enable-prompt"))),
        "engine",
        "warning",
        "its answers do not say what was cached",
        "add --enable-prompt-tokens-details",
    ),
    "no statistics": (
        pods(vllm("--disable-log-stats", *ARGS)),
        "engine",
        "problem",
        "--disable-log-stats",
        "take --disable-log-stats away",
    ),
    "no events": (
        silent(vllm(*without("--kv"))),
        "engine",
        "problem",
        "KV events are off",
        f"add {events_flag()}",
    ),
    "no events, says the engine": (
        changed(f"{ENGINE}/kv_event_sources", {}),
        "engine",
        "problem",
        "KV events are off",
        f"add {events_flag()}",
    ),
    "events in no JSON": (
        silent(vllm("--kv-events-config={", *without("--kv"))),
        "engine",
        "problem",
        "--kv-events-config cannot be read: it is no JSON",
        "write --kv-events-config",
    ),
    "events on loopback": (
        silent(
            vllm(
                '--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:1"}',
                *without("--kv"),
            )
        ),
        "engine",
        "problem",
        "which only its own pod can reach",
        "publish to all",
    ),
    "events to one place": (
        silent(
            vllm(
                '--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://agent:1",'
                '"replay_endpoint":"tcp://*:2"}',
                *without("--kv"),
            )
        ),
        "engine",
        "warning",
        "its publisher connects to tcp://agent:1",
        "let it listen",
    ),
    "no replay": (
        changed(f"{ENGINE}/kv_event_sources", {"0": {"endpoint": "tcp://*:5557"}}),
        "engine",
        "warning",
        "it answers no replays",
        "add a `replay_endpoint`",
    ),
    "an old release": (
        changed(f"{ENGINE}/version", {"version": "0.9.2"}),
        "engine",
        "warning",
        "vLLM before 0.10 is not known",
        "use a newer release",
    ),
    "an HTTP port for everybody": (
        changed(
            POLICIES,
            listed(
                policy("c", component("coordinator")),
                policy("a", component("agent")),
                policy("e", {"app": "vllm"}, AGENTS_ALONE, {"ports": [{"port": 8000}]}),
            ),
        ),
        "engine",
        "warning",
        "anybody in the cluster may send it requests, past every policy and limit",
        "networkPolicies.engines.selector",
    ),
    "a key that coordinators do not know": (
        lambda answers: (
            pods(vllm("--api-key=k", *ARGS), configured())(answers),
            answers.update({f"{CORE}/configmaps/settings": settings(READS)}),
        ),
        "engine",
        "problem",
        "it asks for a key, and coordinators have none for pods that worker sets select",
        "coordinator.kubernetes.engineKeySecret",
    ),
    "a worker set that selects nothing": (
        changed(
            SETS,
            listed(
                {
                    "metadata": {"name": "glm", "namespace": NS},
                    "spec": {"selector": {"app": "other"}},
                }
            ),
        ),
        "worker sets",
        "problem",
        f"worker set {NS}/glm selects no pod",
        "--show-labels",
    ),
    "a worker set that nobody reads": (
        lambda answers: (
            pods(configured())(answers),
            answers.update({f"{CORE}/configmaps/settings": settings("transport: plaintext\n")}),
        ),
        "worker sets",
        "problem",
        f"no coordinator reads worker set {NS}/glm: they go by their settings alone",
        "coordinator.kubernetes.enabled",
    ),
    "a worker set elsewhere": (
        lambda answers: (
            pods(configured())(answers),
            answers.update(
                {
                    f"{CORE}/configmaps/settings": settings(
                        READS.replace("lineside, models", "models")
                    )
                }
            ),
        ),
        "worker sets",
        "problem",
        f"no coordinator reads worker set {NS}/glm: its namespace is none of theirs",
        "coordinator.kubernetes.namespaces",
    ),
    "no engines": (
        lambda answers: answers.update(
            {
                SETS: listed(),
                f"{CORE}/pods": listed(
                    *(
                        each
                        for each in answers[f"{CORE}/pods"]["items"]
                        if not each["metadata"]["name"].startswith("vllm")
                    )
                ),
            }
        ),
        "engines",
        "warning",
        "no pod runs vLLM here",
        "deploy/examples/vllm.yaml",
    ),
}


@pytest.mark.parametrize(
    ("change", "part", "level", "words", "help"), PROBLEMS.values(), ids=PROBLEMS
)
async def test_what_is_wrong_is_said_with_what_to_do(
    change: Callable[[dict[str, Any]], None], part: str, level: str, words: str, help: str
) -> None:
    await one_thing_wrong(change, part, level, words, help)
