"""`lineside replay`: tables, JSON, plots, and what it refuses."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cli.main import main
from cli.strategies import STRATEGIES

TRACE = str(Path(__file__).parent / "cases" / "traces" / "mooncake-conversation-300.jsonl.gz")
SMALL = [TRACE, "--engines", "3", "--requests", "120", "--rate", "3"]

REJECT = """\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: long, namespace: n }
spec:
  rules:
  - name: long
    matches: [ { inputTokens: { greaterThan: 10000 } } ]
    reject: { status: 413, message: too long }
"""


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["replay", *arguments, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_strategies_are_compared_on_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    said = replayed(capsys, *SMALL)
    assert (said["requests"], said["engines"], said["rate"]) == (120, 3, 3.0)
    found = said["strategies"]
    assert list(found) == list(STRATEGIES)
    for figures in found.values():
        assert figures["requests"] == 96
        assert 0 < figures["ttft_p50_ms"] <= figures["ttft_p95_ms"]
        assert 0 <= figures["hit_rate"] < 1
    assert found["lineside"]["mean_to_oracle"] < 1.15
    assert found["random"]["mean_to_oracle"] > found["lineside"]["mean_to_oracle"]


def test_the_same_seed_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    only = [*SMALL, "--requests", "40", "--strategy", "lineside", "--strategy", "oracle"]
    assert replayed(capsys, *only) == replayed(capsys, *only)


def test_load_is_a_share_of_what_the_engines_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    small = [TRACE, "--engines", "2", "--requests", "60", "--strategy", "round_robin"]
    said = replayed(capsys, *small, "--load", "0.5")
    assert said["rate"] == pytest.approx(said["capacity"] / 2)
    assert 0.3 < said["capacity"] / 2 < 3  # each engine


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *SMALL, "--strategy", "oracle", "--strategy", "random"]) == 0
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "120 requests, 3 engines, 3.00/s"
    assert lines[1].split()[:4] == ["strategy", "mean", "p50", "p95"]
    assert [line.split()[0] for line in lines[2:4]] == ["oracle", "random"]
    assert max(map(len, lines)) <= 100
    assert [line.split(maxsplit=1) for line in lines[6:]] == [
        ["oracle", "true caches and queues: the soonest first token"],
        ["random", "any engine"],
    ]
    assert "random: 120 requests in" in err


def test_a_plot_has_a_line_for_each_strategy_over_time_and_by_engine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "p.svg"
    replayed(capsys, *SMALL, "--strategy", "oracle", "--strategy", "random", "--plot", str(plot))
    drawn = ElementTree.parse(plot).getroot()
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4
    assert [len(line.attrib["points"].split()) for line in lines[2:]] == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            [TRACE, "--plot", "p.png"],
            "p.png: plots are written as SVG only",
            id="a plot in another format",
        ),
        pytest.param(
            [TRACE, "--requests", "1"],
            "a replay needs two requests at least, and some time between them",
            id="one request",
        ),
        pytest.param(["nowhere"], "nowhere: cannot be read: no such file or directory", id="file"),
        pytest.param(
            [__file__], f"{__file__}: line 1 is not JSON", id="a file that is something else"
        ),
        pytest.param(
            ["/dev/null"], "/dev/null: there is no request in it", id="a file without requests"
        ),
    ],
)
def test_what_cannot_be_replayed_says_why(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["replay", *arguments]) == 3
    assert capsys.readouterr().err.splitlines()[0] == f"lineside: {said}"


def test_two_sets_of_policies_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text(REJECT)
    b.write_text(REJECT.replace("10000", "20000"))
    only = [*SMALL, "--strategy", "lineside", "--policy", str(a), "--policy", str(b)]
    said = replayed(capsys, *only)
    refused = {name: figures["refused"] for name, figures in said["strategies"].items()}
    assert list(refused) == ["lineside", "policy_a", "policy_b"]
    assert refused["lineside"] == 0 < refused["policy_b"] < refused["policy_a"]
    assert said["policies"]["sent_elsewhere"] >= refused["policy_a"] - refused["policy_b"]


def test_policies_with_findings_are_not_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(REJECT.replace("reject:", "rejects:"))
    assert main(["replay", *SMALL, "--policy", str(bad)]) == 1
    assert "bad.yaml:8:5: unknown-field" in capsys.readouterr().out


def record(at: float, **outcome: Any) -> dict[str, Any]:
    return {"at": at, "prompt_tokens": 700, "outcome": {"prompt_tokens": 800, **outcome}}


def test_decision_records_are_replayed_as_far_as_they_say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As one list, as `lineside get decisions --json` prints them; newest first."""
    records = [record(1000.0 + n, completion_tokens=20) for n in range(10, 0, -1)]
    records += [record(1000.5), {"at": 1000.7, "outcome": None, "refusal": {}}]
    file = tmp_path / "decisions.json"
    file.write_text(json.dumps(records))
    assert main(["replay", str(file), "--engines", "2", "--strategy", "round_robin"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "10 requests, 2 engines, 1.05/s"
    assert err.splitlines()[:2] == [
        "note: records name no blocks: every prompt is its own, and no cache helps any",
        "note: 2 of 12 records are left out: their prompt's or their answer's tokens are not known",
    ]


def test_records_may_come_one_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    lines = [json.dumps(record(float(n), completion_tokens=20)) for n in range(5)]
    file.write_text("\n".join(lines) + "\n")
    said = replayed(capsys, str(file), "--strategy", "least_loaded")
    assert said["requests"] == 5
    assert said["strategies"]["least_loaded"]["hit_rate"] == 0
