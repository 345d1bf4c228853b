"""`lineside get pools`, and what `get policies` says of a cluster."""

from io import StringIO
from typing import Any

from rich.console import Console, Group

from cli.get import policies_shown
from cli.pools import pools_shown


def printed(shown: Group) -> list[str]:
    out = StringIO()
    Console(file=out, width=160).print(shown)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def provider(name: str, **said: Any) -> dict[str, Any]:
    known = {"name": name, "type": "OpenAI", "inflight": 0, "models": {"m": "m"}}
    return known | {"cooldown": None, "key_missing": None} | said


def test_pools_and_providers_are_two_tables() -> None:
    said = [
        {"name": "default", "engines": [], "saturated": None},
        {"name": "qwen", "engines": ["10.0.0.1:8000", "10.0.0.2:8000"], "saturated": False},
        provider("bedrock", inflight=2),
        provider("openai", key_missing="`file` cannot be read"),
        provider("busy", cooldown={"reason": "it takes no more"}),
    ]
    assert printed(pools_shown(said)) == [
        "pool     engines  saturated  which",
        "default        0  -          -",
        "qwen           2  no         10.0.0.1:8000, 10.0.0.2:8000",
        "",
        "provider  type    in flight  state                          models",
        "bedrock   OpenAI          2  used                           m",
        "openai    OpenAI          0  no key: `file` cannot be read  m",
        "busy      OpenAI          0  cools down: it takes no more   m",
    ]


def test_without_providers_there_is_no_table_of_them() -> None:
    said = [{"name": "default", "engines": ["e"], "saturated": True}]
    assert printed(pools_shown(said)) == [
        "pool     engines  saturated  which",
        "default        1  yes        e",
    ]


def test_what_is_wrong_in_a_cluster_is_said() -> None:
    said = {
        "revision": 3,
        "policies": [],
        "source": "custom resources of the cluster (inference)",
        "rejected": True,
        "findings": [
            {
                "file": "InferencePolicy inference/a: spec.rules[0].name",
                "line": None,
                "col": None,
                "code": "duplicate-name",
                "message": "there are two",
            }
        ],
        "cluster": {
            "away": "cannot connect",
            "missing": ["inferencepools"],
            "status_problem": "it answers 403",
        },
    }
    assert printed(policies_shown(said)) == [
        "no policy is in force: the default rule is",
        "revision 3",
        "from custom resources of the cluster (inference)",
        "some resources are wrong; of those the last good form is in force, or nothing",
        "the cluster cannot be read, so this may be old: cannot connect",
        "not installed: inferencepools",
        "statuses are not written: it answers 403",
        "InferencePolicy inference/a: spec.rules[0].name: duplicate-name: there are two",
    ]
