"""Lint as a whole: what earns no finding, the order of findings, every code, and time.

Single findings are in `test_policy_lint_rules`, `_backends` and `_proofs`, with their exact places
and words.
"""

import re
import time
from pathlib import Path

import pytest

from policies.checks.codes import CODES
from policies.lint import lint
from policies.load import load
from tests.lint_scenes import ANNOTATED, EXCLUDE, LOCAL_FIRST, POLICY, RULE, STAGE, told
from tests.test_policy_lint_backends import BACKENDS, NAMES
from tests.test_policy_lint_proofs import PROOFS
from tests.test_policy_lint_rules import RULES

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "policies" / "examples"

FINE = [
    pytest.param(
        f"{EXCLUDE}        if: {{pool: {{saturated: false}}}}\n"
        "        drop: {backend: {type: Provider}}\n"
        "      select: [{type: Provider}, {type: Local}]\n",
        id="providers come first, but only while the pool is saturated",
    ),
    pytest.param(
        f"{EXCLUDE}        if: {{tag: a}}\n        drop: {{backend: {{names: ['*']}}}}\n",
        id="a guard that refuses, while a tag is unknown too",
    ),
    pytest.param(
        f"{RULE}    matches: [{{tag: a}}]\n    route: {{select: [{{type: Local}}]}}\n",
        id="a tag rule before the default route, which has no providers",
    ),
    pytest.param(
        f"{RULE}    matches: [{{tag: a}}]\n    route: {{select: [{{type: Local}}]}}\n"
        "  - name: s\n    route:\n      exclude:\n      - name: x\n        if: {tag: a}\n"
        "        drop: {backend: {type: Provider}}\n",
        id="a tag rule with a guard behind it",
    ),
    pytest.param(
        f"{RULE}    route: {{}}\n"
        "  - name: s\n    route:\n      exclude:\n      - name: x\n        if: {tag: a}\n"
        "        drop: {backend: {type: Provider}}\n",
        id="a rule of guards alone, which never routes",
    ),
    pytest.param(
        f"{RULE}    route: {{}}\n"
        f"---\n{POLICY.replace('p}', 'q}')}spec:\n  rules:\n  - name: s\n    route:\n"
        "      exclude: [{name: x, if: {tag: a}, drop: {backend: {type: Provider}}}]\n"
        "      select: [{type: Local}]\n",
        id="a policy with guards that leaves the routing to another",
    ),
    pytest.param(
        f"{RULE}    route: {{onEmpty: NextRule}}\n  - name: s\n    route: {{}}\n",
        id="a rule behind one that goes on",
    ),
    pytest.param(
        f"{POLICY}spec:\n  mode: Shadow\n  rules:\n  - {{name: r, route: {{}}}}\n"
        f"---\n{POLICY.replace('p}', 'q}')}spec: {{rules: [{{name: r, route: {{}}}}]}}\n",
        id="a rule behind one that only watches",
    ),
    pytest.param(
        f"{STAGE}      - {{names: ['e*'], models: {{classes: [large]}}}}\n"
        "      - {names: [e1]}\n",
        id="a stage that takes models which the earlier one does not",
    ),
    pytest.param(
        f"{ANNOTATED}    lineside.dev/prove: tag=a never=Provider:bed*; tag=b never=Local\n"
        "spec: {rules: [{name: r, route: {select: [{type: Local, names: [none]}], exclude: [\n"
        "  {name: x, if: {tags: {any: [a, b]}}, drop: {backend: {names: ['*']}}}]}}]}\n",
        id="claims about a name and a type that hold",
    ),
]


@pytest.mark.parametrize("text", FINE)
def test_what_is_meant_earns_nothing(text: str) -> None:
    assert told(text) == []


PROVIDER_FIRST = [
    "pii-stays-local.yaml:15:9: warning: provider-first: `select[0]` sends requests to providers "
    "before the local engines of `select[1]` are tried",
    f"  {LOCAL_FIRST}",
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("burst-policy", []),
        ("smart-semantic-routing", []),
        ("pii-stays-local", PROVIDER_FIRST),
    ],
)
def test_of_the_published_examples_one_earns_a_warning(name: str, expected: list[str]) -> None:
    path = EXAMPLES / f"{name}.yaml"
    loaded = load([(path.name, path.read_bytes())])
    lines = [line for finding in lint(loaded.resources) for line in str(finding).splitlines()]
    assert (loaded.findings, lines) == ((), expected)


def test_findings_come_in_the_order_of_the_files_and_each_once() -> None:
    second = f"{RULE}    limits: [{{window: 1m}}]\n  - name: r\n    reject: {{message: m}}\n"
    documents = [("b.yaml", second.encode()), ("a.yaml", f"{RULE}".replace("p}", "q}").encode())]
    loaded = load(documents)
    places = [f"{each.place}: {each.code}" for each in lint(loaded.resources)]
    assert places == [
        "b.yaml:7:14: empty-limit",
        "b.yaml:7:14: limit-not-enforced",
        "b.yaml:8:5: duplicate-name",
        "a.yaml:6:5: no-effect",
    ]


def test_long_and_odd_names_stay_on_one_line() -> None:
    name = "n" * 100 + "\u2028"
    lines = told(f'{POLICY}spec: {{rules: [{{name: "{name}"}}]}}\n')
    shown = "n" * 60 + "…"
    assert lines == [
        f"p.yaml:4:16: no-effect: rule `{shown}` does nothing with the requests that it matches",
        "  help: give it a `route`, `reject` or `limits`",
    ]


def test_a_thousand_rules_are_checked_in_time() -> None:
    rules = "".join(
        f"  - {{name: r{n}, matches: [{{model: 'm{n}-*', tenant: '*t{n % 7}*'}}], route: {{exclude:"
        f" [{{name: q, if: {{tag: t{n % 20}}}, drop: {{backend: {{names: ['e{n}*']}}}}}}], select: "
        "[{type: Local}], onEmpty: NextRule}}\n"
        for n in range(1000)
    )
    loaded = load([("p.yaml", f"{POLICY}spec:\n  rules:\n{rules}".encode())])
    began = time.process_time()
    codes = [each.code for each in lint(loaded.resources)]
    assert codes == ["next-rule-last"]
    assert time.process_time() - began < 15


def test_every_code_has_a_case() -> None:
    tried = [case.values for case in (*BACKENDS, *NAMES, *PROOFS, *RULES)]
    lines = [line for _, expected in tried for line in expected]
    codes = {said[1] for line in lines if (said := _CODE.match(line))}
    assert codes == set(CODES)


def test_every_code_is_explained_and_nothing_else() -> None:
    page = (ROOT / "docs" / "policy-findings.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.+) \| (.+) \|$", page, re.M)
    expected = [(name, code.severity, code.meaning, code.remedy) for name, code in CODES.items()]
    assert rows == expected
    assert list(CODES) == sorted(CODES)


_CODE = re.compile(r"p\.yaml:\d+:\d+: (?:warning: )?([a-z-]+): ")


def test_two_hundred_policies_are_linted_in_a_moment() -> None:
    """A second of work; the bound is where the order of work would be wrong."""
    loaded = load([("p.yaml", "---\n".join(_policy(n) for n in range(200)).encode())])
    assert loaded.findings == ()
    started = time.process_time()
    codes = {finding.code for finding in lint(loaded.resources)}
    assert (codes, time.process_time() - started < 15) == (set(), True)


def _policy(number: int) -> str:
    drop = f"if: {{tag: tag-{number % 10}}}, drop: {{backend: {{type: Provider}}}}"
    order = f"[provider-{number % 20}]"
    match = f"{{tenant: tenant-{number}, model: 'model-{number % 50}*'}}"
    return (
        f"{POLICY.replace('name: p', f'name: p{number}')}spec:\n  rules:\n"
        f"  - name: guard\n    matches: [{{model: model-{number}}}]\n    route:\n"
        f"      exclude: [{{name: x, {drop}}}]\n"
        f"      select: [{{type: Local}}, {{type: Provider, order: {order}}}]\n"
        f"  - name: pinned\n    matches: [{match}]\n"
        f"    route: {{consider: [{{pools: [pool-{number}]}}]}}\n"
    )
