"""Cases, states and requests are read strictly, and a case that fails says what differs."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.policy_test import run
from cli.resources import Given, given
from lineside.findings import Finding
from policies.cases import RequestSpec, read_request, read_state
from policies.facts import Truth
from policies.judge import Difference
from policies.state import ClusterState, EngineState

POLICY = """\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {name: p}
spec:
  rules:
  - name: r
    matches: [{tag: t}]
    route:
      exclude: [{name: e, if: {tag: t}, drop: {backend: {names: [b]}}}]
      set: {maxTokens: 5}
  - name: away
    matches: [{tenant: x}]
    reject: {message: go away}
---
apiVersion: lineside.dev/v1alpha1
kind: ClusterState
engines:
- {id: a, models: [m], predictedTTFT: 1}
- {id: b, models: [m], predictedTTFT: 0.5}
"""


def wrote(folder: Path, cases: str, policy: str = POLICY) -> list[str]:
    (folder / "policy.yaml").write_text(policy)
    (folder / "cases.yaml").write_text(f"kind: PolicyTest\ncases:\n{cases}")
    return [str(folder / "policy.yaml"), str(folder / "cases.yaml")]


def told(folder: Path, findings: Any) -> str:
    return "\n".join(str(each) for each in findings).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        pytest.param(
            "- {note: n, request: {model: m}, expect: {}}\n",
            "cases.yaml:3:34: expects-nothing: this case holds whatever policies say\n"
            "  help: name a `backend`, a `model`, a `refusal`, or what `never` gets the request",
            id="nothing is expected",
        ),
        pytest.param(
            "- {note: n, request: {model: m}, expect: {backend: a, refusal: {}}}\n",
            "cases.yaml:3:43: contradiction: a request that is refused has no `backend`",
            id="a backend and a refusal",
        ),
        pytest.param(
            "- {note: n, request: {model: m}, expect: {backend: a}}\n"
            "- {note: n, request: {model: m}, expect: {backend: b}}\n",
            "cases.yaml:4:4: duplicate-note: two cases have the same note\n"
            "  help: the first is case 1",
            id="two notes alike",
        ),
        pytest.param(
            "- {note: n, request: {model: m}, changes: {c: {cost: 1}}, expect: {backend: a}}\n",
            "cases.yaml:3:44: unknown-backend: `c` is no engine or provider of the state",
            id="a change of what is not there",
        ),
        pytest.param(
            "- {note: n, request: {model: m, tags: {t: yes}}, expect: {backnd: a, rule: r}}\n",
            "cases.yaml:3:43: wrong-value: `cases[0].request.tags.t` must be one of `absent`,"
            " `present`, `unknown`, not `true`\n"
            "cases.yaml:3:59: unknown-field: there is no field `backnd` in `cases[0].expect`\n"
            "  help: did you mean `backend`?",
            id="a tag that is neither, and a typo",
        ),
    ],
)
def test_cases_that_are_written_wrong_are_not_run(cases: str, said: str, tmp_path: Path) -> None:
    ran, findings = run(given(wrote(tmp_path, cases)))
    assert ran == []
    assert told(tmp_path, findings) == said


def test_a_set_without_cases_or_with_two_states_is_not_run(tmp_path: Path) -> None:
    files = wrote(tmp_path, "- {note: n, request: {model: m}, expect: {backend: b}}\n")
    assert told(tmp_path, run(given(files[:1]))[1]) == (
        "FILES: no-cases: there is no PolicyTest among the files"
    )
    (tmp_path / "state.yaml").write_text("kind: ClusterState\n")
    _, findings = run(given([*files, str(tmp_path / "state.yaml")]))
    assert told(tmp_path, findings) == (
        "cases.yaml:1:1: two-states: there is more than one ClusterState"
    )


def test_two_backends_of_one_name_are_no_state(tmp_path: Path) -> None:
    state = b"engines:\n- {id: a, models: [m]}\n- {id: a, models: []}\n"
    assert told(tmp_path, read_state(state, "s.yaml")) == (
        "s.yaml:3:3: duplicate-backend: `a` is in `engines` twice"
    )


def test_a_coordinators_engines_are_a_state() -> None:
    shown = [
        {"id": "h:8000", "endpoint": "h:8000", "models": ["m", "lora"], "waiting": 3, "inflight": 5}
        | {"kv_cache_usage": 0.5, "wait_s": 0.2, "age_s": 1.5, "blocks": 7},
        {"id": "i:8000/1", "endpoint": "i:8000", "models": [], "waiting": None, "asleep": True},
    ]
    assert read_state(json.dumps(shown).encode(), "s.json") == ClusterState(
        engines=(
            EngineState(
                id="h:8000",
                url="http://h:8000",
                models=("m", "lora"),
                queued_prompts=3,
                running_prompts=5,
                kv_cache_usage=0.5,
                predicted_ttft=0.2,
                freshness=1.5,
            ),
            EngineState(id="i:8000/1", url="http://i:8000", models=(), available=False),
        )
    )


def test_another_list_is_no_state() -> None:
    assert [str(each) for each in read_state(b"[{name: hunter2}]", "s.json")] == [  # type: ignore[union-attr]
        "s.json:1:1: wrong-value: this is no list of engines\n"
        "  help: a list is what `lineside get engines --json` prints"
    ]


CASE = "- {{note: n, request: {{model: m{request}}}{more}, expect: {{{expect}}}}}\n"


@pytest.mark.parametrize(
    ("request_", "expect", "differences"),
    [
        pytest.param("", "backend: b", [], id="as expected"),
        pytest.param("", "backend: [a, b], model: [m, n]", [], id="one of several"),
        pytest.param("", "backend: a", ["backend: expected `a`, got `b`"], id="another backend"),
        pytest.param(
            "",
            "policy: default/p, rule: r, stage: 'select[0]', model: n",
            [
                "model: expected `n`, got `m`",
                "stage: expected `select[0]`, got `default`",
                "policy: expected `default/p`, got `default`",
                "rule: expected `r`, got `default`",
            ],
            id="another rule",
        ),
        pytest.param(
            ", tags: {t: present}",
            "fallbacks: [b], set: {maxTokens: 6}",
            [
                "fallbacks: expected `b`, got none",
                'set: expected {"maxTokens":6}, got {"maxTokens":5}',
            ],
            id="other fallbacks, and another rewrite",
        ),
        pytest.param(
            ", tags: {t: present}",
            "reasons: [names b, guard default/p/r/e holds]",
            [],
            id="a reason is a part of one",
        ),
        pytest.param(
            ", tags: {t: absent}",
            "reasons: [names b], shadow: {default/q: would}",
            [
                "reasons: expected `names b`, got none",
                "shadow of default/q: expected `would`, got nothing",
            ],
            id="no such reason, no such shadow",
        ),
        pytest.param(
            ", tenant: x",
            "refusal: {status: 403, by: default/p/away, message: away}",
            [],
            id="a refusal",
        ),
        pytest.param(
            ", tenant: x",
            "refusal: {status: 503, by: default/p/r, message: stay}",
            [
                "refusal.status: expected 503, got 403",
                "refusal.by: expected `default/p/r`, got `default/p/away`",
                "refusal.message: expected `stay`, got `go away`",
            ],
            id="another refusal",
        ),
        pytest.param(
            ", tenant: x",
            "backend: a",
            ['backend: expected `a`, got {"status":403,"by":"default/p/away","message":"go away"}'],
            id="a refusal for a backend",
        ),
        pytest.param(", tenant: x", "never: {type: Local}", [], id="a refusal reaches nobody"),
    ],
)
def test_a_case_says_what_differs(
    request_: str, expect: str, differences: list[str], tmp_path: Path
) -> None:
    case = CASE.format(request=request_, more="", expect=expect)
    (ran,), findings = run(given(wrote(tmp_path, case)))
    assert findings == []
    assert [str(each) for each in ran.judged.differences] == differences


def test_a_backend_where_a_refusal_was_expected(tmp_path: Path) -> None:
    expect = "never: {names: [b]}, refusal: {status: 403}"
    (ran,), _ = run(given(wrote(tmp_path, CASE.format(request="", more="", expect=expect))))
    assert ran.judged.differences == (
        Difference("refusal", {"status": 403}, ["b"]),
        Difference("never", {"names": ("b",)}, ["b"]),
    )


def test_what_chance_decides_is_expected_only_when_every_winner_is(tmp_path: Path) -> None:
    """Two engines tie: whichever wins here is not always the one that wins."""
    more = ", changes: {a: {predictedTTFT: 0.5}}"
    for expect, differs in (("backend: b", True), ("backend: [a, b]", False)):
        (ran,), _ = run(given(wrote(tmp_path, CASE.format(request="", more=more, expect=expect))))
        assert bool(ran.judged.differences) == differs
        assert {each.id for each in ran.judged.trial.winners} == {"a", "b"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            '{"model": "m", "tags": {"t": "present"}, "headers": {"X-Y": "z"}, "inputTokens": 7}',
            RequestSpec(model="m", tags={"t": "present"}, headers={"X-Y": "z"}, input_tokens=7),
            id="facts",
        ),
        pytest.param(
            '{"model": "m", "messages": [{"role": "user", "content": "hunter2"}], "stream": true}',
            RequestSpec(model="m", stream=True),
            id="a client's chat",
        ),
        pytest.param(
            '{"path": "/v1", "headers": {"a": "b"}, "body": {"model": "m", "prompt": 1}}',
            RequestSpec(model="m", api="openai-completions", headers={"a": "b"}),
            id="a request with its path",
        ),
    ],
)
def test_a_request_is_read_in_three_shapes(document: str, expected: RequestSpec) -> None:
    assert read_request(document.encode(), "r.json") == expected


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param("", "r.json:1:1: one-document: there must be one document in it", id="empty"),
        pytest.param(
            '{"messages": ["hunter2"]}',
            "r.json:1:1: missing-field: `model` is missing\n"
            "  help: it must be text of 1 to 253 characters without control characters",
            id="no model",
        ),
        pytest.param(
            '{"model": "m", "tag": "t"}',
            "r.json:1:16: unknown-field: there is no field `tag`\n  help: did you mean `tags`?",
            id="a typo",
        ),
    ],
)
def test_what_is_no_request_is_said(document: str, said: str) -> None:
    found = read_request(document.encode(), "r.json")
    assert isinstance(found, list)
    assert "\n".join(str(each) for each in found) == said


def test_names_of_headers_lose_their_case_and_tags_have_three_states() -> None:
    facts = RequestSpec(model="m", headers={"X-Y": "Z"}, tags={"t": "absent"}).facts()
    assert facts.headers == {"x-y": "Z"}
    assert facts.tags == {"t": Truth.FALSE}


def test_findings_of_resources_and_of_cases_come_together(tmp_path: Path) -> None:
    files = wrote(tmp_path, "- {note: n}\n", POLICY.replace("route:", "rout:"))
    said: Given = given(files)
    assert [each.code for each in said.findings] == [
        "unknown-field",
        "missing-field",
        "missing-field",
    ]
    assert all(isinstance(each, Finding) for each in said.findings)
    assert said.states[0].engines != ClusterState().engines
