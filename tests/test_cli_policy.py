"""`lineside policy`: what each command prints, and its exit code."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.main import main
from policies.load import load

EXAMPLES = Path(__file__).parent.parent / "policies" / "examples"
BURST, PII, SMART = (
    str(EXAMPLES / f"{name}.yaml")
    for name in ("burst-policy", "pii-stays-local", "smart-semantic-routing")
)
CLUSTER = str(EXAMPLES / "cluster.yaml")


class Ran:
    """Runs a command and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str]:
        code = main(["policy", *words])
        out, err = self._capsys.readouterr()
        return code, out + err

    def json(self, *words: str) -> tuple[int, Any]:
        code, out = self(*words, "--json")
        return code, json.loads(out)


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    return Ran(capsys)


@pytest.mark.parametrize("file", [BURST, SMART])
def test_lint_finds_nothing_in_two_of_the_published_three(file: str, ran: Ran) -> None:
    assert ran("lint", "--strict", file) == (0, "1 resource: no findings\n")
    assert ran.json("lint", file) == (0, {"findings": []})


def test_lint_warns_of_the_third_and_only_strict_lint_fails(ran: Ran) -> None:
    code, said = ran("lint", PII)
    first, *_, last = said.splitlines()
    assert code == 0
    assert first.startswith(f"{PII}:15:9: warning: provider-first: ")
    assert last == "1 resource: 0 errors, 1 warning"
    code, shown = ran.json("lint", "--strict", PII)
    assert code == 1
    (found,) = shown["findings"]
    assert set(found) == {"file", "line", "col", "code", "severity", "message", "help"}
    assert (found["line"], found["severity"]) == (15, "warning")


@pytest.mark.parametrize(
    "file",
    [path for path in sorted(EXAMPLES.glob("*.yaml")) if path.name != "cluster.yaml"],
    ids=lambda path: path.stem,
)
def test_lint_finds_no_errors_in_an_example_on_its_cluster(file: Path, ran: Ran) -> None:
    code, shown = ran.json("lint", str(file), CLUSTER)
    assert (code, [each["code"] for each in shown["findings"]]) == (
        0,
        ["provider-first"] if file.name == "pii-stays-local.yaml" else [],
    )


def test_lint_reads_folders_and_standard_input(
    tmp_path: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    document = Path(BURST).read_text()
    (tmp_path / "a.yaml").write_text(document)
    (tmp_path / "deep" / "b.yml").write_text(document.replace("burst-policy", "again"))
    (tmp_path / "deep" / "c.json").write_text("{}")
    (tmp_path / "README.md").write_text("no policy")
    (tmp_path / ".hidden" / "d.yaml").write_text("no policy")
    (tmp_path / ".e.yaml").write_text("no policy")
    stdin = io.TextIOWrapper(io.BytesIO(b"kind: x\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    # The file that is named and in the folder is read once.
    code, said = ran("lint", str(tmp_path), str(tmp_path / "a.yaml"), "-")
    found = [line for line in said.splitlines() if not line.startswith("  ")]
    assert code == 1
    assert [line.rpartition(f"{tmp_path}/")[2] for line in found[:2]] == [
        "deep/c.json:1:1: missing-field: `kind` is missing",
        "stdin:1:7: unknown-kind: there is no kind `x`",
    ]
    assert all("unreachable-rule" in line for line in found[2:-1])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda path: None, "cannot be read: no such file or directory", id="none"),
        pytest.param(
            lambda path: path.mkdir(),
            "there is no *.yaml, *.yml, *.json in it",
            id="an empty folder is not clean",
        ),
    ],
)
def test_what_cannot_be_read_is_no_finding(make: Any, said: str, tmp_path: Path, ran: Ran) -> None:
    make(tmp_path / "x")
    assert ran("lint", str(tmp_path / "x")) == (3, f"lineside: {tmp_path}/x: {said}\n")


def test_the_third_policy_keeps_personal_data_here_alone_and_with_the_others(ran: Ran) -> None:
    ask = ("prove", "--tag", "pii-detected", "--never", "Provider")
    held = "holds: no request with tag `pii-detected` can be sent to Provider\n"
    assert ran(*ask, PII) == (0, held)
    assert ran(*ask, BURST, PII, SMART) == (0, held)
    assert ran(*ask, BURST, PII, SMART, CLUSTER) == (0, held)
    code, shown = ran.json(*ask, BURST, PII, SMART)
    assert (code, shown["holds"], shown["counterexample"]) == (0, True, None)


def test_a_counterexample_can_be_explained(tmp_path: Path, ran: Ran) -> None:
    for resources in ([BURST], [BURST, CLUSTER]):
        ask = ("prove", "--tag", "pii-detected", "--never", "Provider:bedrock", *resources)
        code, said = ran(*ask)
        first, request, state, doubt = said.splitlines()
        assert doubt.startswith("doubt: no policy names tag ")
        assert code == 1 and first.startswith("counterexample: a request for ")
        code, shown = ran.json(*ask)
        assert (code, shown["holds"]) == (1, False)
        (tmp_path / "request.json").write_text(request.removeprefix("request: "))
        (tmp_path / "state.json").write_text(state.removeprefix("state: "))
        code, trial = ran.json(
            "explain",
            BURST,
            "--request",
            str(tmp_path / "request.json"),
            "--state",
            str(tmp_path / "state.json"),
        )
        assert code == 0
        assert trial["decision"]["id"] == shown["counterexample"]["backend"]["id"] == "bedrock"


def test_a_claim_about_backends_that_there_are_none_of_says_so(ran: Ran) -> None:
    ask = ("prove", "--tag", "pii-detected", "--never", "Provider:bedrok", PII, CLUSTER)
    doubt = "no backend of the inventory is called `bedrok`; did you mean `bedrock`?"
    assert ran(*ask) == (1, f"holds: this cluster has no Provider `bedrok`\ndoubt: {doubt}\n")
    code, said = ran.json(*ask)
    assert (code, said["holds"], said["doubts"]) == (1, True, [doubt])
    ask = ("prove", "--tag", "pii-detcted", "--never", "Provider", PII, CLUSTER)
    assert ran(*ask)[1].endswith(
        "doubt: no policy names tag `pii-detcted`; did you mean `pii-detected`?\n"
    )


@pytest.mark.parametrize(
    ("never", "help"),
    [
        ("provider", "did you mean `Provider`?"),
        ("bedrock", "say `Provider`, `Local`, or one with a name: `Provider:acme`"),
        ("Provider:", "say `Provider`, `Local`, or one with a name: `Provider:acme`"),
    ],
)
def test_a_claim_that_cannot_be_read_is_usage(
    never: str, help: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["policy", "prove", "--tag", "t", "--never", never, BURST])
    assert exit.value.code == 2
    said = f"argument --never: `{never}` says of no backend that it is meant; {help}\n"
    assert capsys.readouterr().err.endswith(said)


REQUEST = '{"model": "glm-5.3", "tags": {"pii-detected": "present"}}'

EXPLAINED = """\
openai-chat for model `glm-5.3`, tenant acme, tags pii-detected present, hot absent, input tokens -
routed by inference/burst-policy/burst-to-cloud/select[0]
chosen: glm-a
fallbacks: glm-canary, glm-b, glm-acme, glm-long

   backend     model    type        TTFT   cost  what became of it
>  glm-a       glm-5.3  Local     200 ms  0.002  select[0]: winner
   glm-canary  glm-5.3  Local     250 ms  0.002  select[0]: fallback 1
   glm-b       glm-5.3  Local     300 ms  0.002  select[0]: fallback 2
   glm-acme    glm-5.3  Local     800 ms  0.002  select[0]: fallback 3
   glm-long    glm-5.3  Local     900 ms  0.004  select[0]: fallback 4
x  bedrock     glm-5.3  Provider       -   0.03  dropped by inference/pii-stays-local/serve/\
pii-never-leaves-cluster: type Provider
x  databricks  glm-5.3  Provider       -   0.02  dropped by inference/pii-stays-local/serve/\
pii-never-leaves-cluster: type Provider
guards that hold: inference/pii-stays-local/serve/pii-never-leaves-cluster
"""


def test_explain_shows_every_candidate_and_what_became_of_it(tmp_path: Path, ran: Ran) -> None:
    request = tmp_path / "r.json"
    request.write_text(REQUEST)
    ask = ("explain", BURST, PII, CLUSTER, "--request", str(request), "--tenant", "acme")
    code, said = ran(*ask, "--tag", "hot=absent")
    assert (code, "\n".join(line.rstrip() for line in said.splitlines()) + "\n") == (0, EXPLAINED)


def test_explain_of_a_refusal_exits_with_1_and_names_the_rule(tmp_path: Path, ran: Ran) -> None:
    (tmp_path / "r.json").write_text(REQUEST)
    (tmp_path / "s.yaml").write_text("providers: [{name: bedrock, models: [glm-5.3]}]\n")
    ask = ("--request", str(tmp_path / "r.json"), "--state", str(tmp_path / "s.yaml"))
    code, shown = ran.json("explain", PII, *ask)
    guard = "inference/pii-stays-local/serve/pii-never-leaves-cluster"
    assert code == 1
    assert shown["refusal"]["status"] == 503
    assert (shown["policy"], shown["rule"]) == ("inference/pii-stays-local", "serve")
    assert [(each["id"], each["dropped_by"]) for each in shown["candidates"]] == [
        ("bedrock", guard)
    ]
    code, said = ran("explain", PII, "--request", ask[1])
    assert code == 1 and "only what FILES hold is known here: --state takes" in said
    code, said = ran("explain", PII, *ask)
    assert "--state" not in said
    assert code == 1 and "refused: 503 by inference/pii-stays-local/serve" in said


def test_explain_says_what_is_wrong_with_a_request_or_a_state(tmp_path: Path, ran: Ran) -> None:
    (tmp_path / "r.json").write_text('{"modell": "m"}')
    (tmp_path / "s.yaml").write_text("engines: [{id: a, model: m}]\n")
    code, said = ran(
        *("explain", BURST, "--request", str(tmp_path / "r.json")),
        *("--state", str(tmp_path / "s.yaml")),
    )
    assert code == 1
    assert [line.split(": ")[1] for line in said.splitlines() if not line.startswith(" ")] == [
        "missing-field",
        "unknown-field",
        "missing-field",
        "unknown-field",
    ]


CASES = f"""\
kind: PolicyTest
files: [{BURST}, {CLUSTER}]
cases:
- {{note: it bursts, request: {{model: glm-5.3}}, expect: {{backend: bedrock}}}}
- {{note: it stays, request: {{model: glm-5.3}}, expect: {{backend: glm-a}}}}
"""


def test_a_case_that_fails_is_shown_with_the_difference(tmp_path: Path, ran: Ran) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text(CASES)
    assert ran("test", "--verbose", str(file)) == (
        1,
        f"{file}:4:3: failed: it bursts\n"
        "  backend: expected `bedrock`, got `glm-a`\n"
        "  decided by: inference/burst-policy/burst-to-cloud/select[0]\n"
        f"{file}:5:3: ok: it stays\n"
        "2 cases: 1 failed\n",
    )
    code, shown = ran.json("test", str(file))
    assert (code, shown["failed"]) == (1, 1)
    assert [(each["note"], each["passed"]) for each in shown["cases"]] == [
        ("it bursts", False),
        ("it stays", True),
    ]
    assert shown["cases"][0]["differences"] == [
        {"field": "backend", "expected": "bedrock", "got": "glm-a"}
    ]


def test_all_cases_of_the_examples_pass(ran: Ran) -> None:
    code, said = ran("test", str(EXAMPLES))
    assert code == 0 and said.endswith(" cases: none failed\n")


def _record(id: str, tags: dict[str, str], waiting: int) -> dict[str, Any]:
    shared = {"ages": {"cache_s": 1.0}, "cost": 0.2, "more": "than policies ask"}
    return {
        "id": id,
        "model": "glm-5.3",
        "tags": tags,
        "prompt_tokens": None,
        "candidates": [
            {"id": "glm-a:8000", "type": "local", "outstanding": waiting, **shared},
            {"id": "bedrock", "type": "provider", "model": "glm-5.3"},
        ],
    }


def test_diff_says_what_another_set_would_have_decided(tmp_path: Path, ran: Ran) -> None:
    both = tmp_path / "both"
    both.mkdir()
    for path in (BURST, PII):
        (both / Path(path).name).write_bytes(Path(path).read_bytes())
    records = [
        _record("one", {"pii-detected": "present"}, 0),
        _record("two", {"pii-detected": "present"}, 9),
        _record("three", {}, 9),
        _record("four", {"pii-detected": "absent"}, 9),
    ]
    lines = tmp_path / "decisions.jsonl"
    lines.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    ask = ("diff", BURST, str(both), "--decisions", str(lines))
    code, shown = ran.json(*ask)
    guard = "inference/pii-stays-local/serve/pii-never-leaves-cluster"
    assert code == 1
    assert shown == {
        "decisions": 4,
        "different": 2,
        "changes": [
            {
                "a": "bedrock with glm-5.3",
                "b": f"refused 503 by {guard}",
                "count": 2,
                "examples": ["two", "three"],
            }
        ],
    }
    code, said = ran(*ask)
    assert code == 1 and said.startswith("4 decisions: 2 different\n") and "two, three" in said
    lines.write_text(json.dumps(records))  # as `lineside get decisions --json` prints them
    assert ran("diff", BURST, BURST, "--decisions", str(lines)) == (
        0,
        "4 decisions: none different\n",
    )


@pytest.mark.parametrize("line", ["hunter2", "[1]", '{"id": 5, "model": "hunter2"}', "[" * 99_999])
def test_a_line_that_is_no_record_is_named_and_not_repeated(
    line: str, tmp_path: Path, ran: Ran
) -> None:
    (tmp_path / "d.jsonl").write_text(f"\n{line}\n")
    code, said = ran("diff", BURST, BURST, "--decisions", str(tmp_path / "d.jsonl"))
    assert code == 1
    assert said == (
        f"{tmp_path}/d.jsonl:2:1: no-record: the line is no JSON, or not in the shape of a record\n"
        "  help: records are what `lineside get decisions --json` prints\n"
    )


def test_the_schema_is_json(ran: Ran) -> None:
    code, said = ran("schema")
    assert code == 0
    assert json.loads(said)["properties"]["kind"]["enum"][0] == "InferencePolicy"


_LINES = Path(PII).read_text().splitlines()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(_LINES) - 1), st.integers(0, 3), st.text(max_size=8))))
def test_no_edit_of_a_policy_makes_loading_fail(edits: list[tuple[int, int, str]]) -> None:
    lines = list(_LINES)
    for at, kind, text in edits:
        lines[at] = {0: " " + lines[at], 1: lines[at][1:], 2: text, 3: lines[at] + text}[kind]
    found = load([("p.yaml", "\n".join(lines).encode(errors="surrogatepass"))])
    assert found.findings or found.resources
