"""Documents become resources; all that is wrong is said at once, each with its exact place."""

from pathlib import Path

import msgspec
import pytest

from lineside.documents import MAX_FINDINGS
from lineside.findings import Place
from lineside.nodes import MAX_BYTES
from policies.load import CLUSTER_ADDS, Loaded, load
from policies.model import KINDS, InferencePool

EXAMPLES = Path(__file__).parent.parent / "policies" / "examples"

HEAD = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: {name: p}\n"
RULE = f"{HEAD}spec:\n  rules:\n  - name: r\n    route:\n"
"""A policy up to its first rule's route: seven lines."""

KINDS_LISTED = (
    "there are `InferencePolicy`, `InferencePool`, `InferenceProvider`, `InferenceWorkerSet`,"
    " `GatewayBackend`"
)


def loaded(text: str | bytes) -> Loaded:
    return load([("p.yaml", text if isinstance(text, bytes) else text.encode())])


def told(text: str | bytes) -> str:
    return "\n".join(str(finding) for finding in loaded(text).findings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            f"{RULE}      exclude:\n      - name: e\n        drop: {{}}\n      if: {{tag: t}}\n",
            "11:7: unknown-field: there is no field `if` in `spec.rules[0].route`\n"
            "  help: it belongs in `exclude`: is the line indented too little?",
            id="a field indented too little",
        ),
        pytest.param(
            f"{RULE}      matches: []\n",
            "8:7: unknown-field: there is no field `matches` in `spec.rules[0].route`\n"
            "  help: it belongs further out: is the line indented too much?",
            id="a field indented too much",
        ),
        pytest.param(
            f"{RULE}      exclude:\n      - name: e\n        drop: {{backends: {{}}}}\n",
            "10:16: unknown-field: there is no field `backends` in"
            " `spec.rules[0].route.exclude[0].drop`\n  help: did you mean `backend`?",
            id="a typo in a nested name",
        ),
        pytest.param(
            f"{RULE}      zzz: 1\n",
            "8:7: unknown-field: there is no field `zzz` in `spec.rules[0].route`\n"
            "  help: there are `consider`, `exclude`, `select`, `onEmpty`, `set`",
            id="no name is near, and there are few",
        ),
        pytest.param(
            f"{HEAD}spec:\n  rules: [{{name: r, matches: [{{zzz: 1}}]}}]\n",
            "5:32: unknown-field: there is no field `zzz` in `spec.rules[0].matches[0]`\n"
            "  help: docs/policies.md lists them all",
            id="no name is near, and there are many",
        ),
        pytest.param(
            f"{RULE}      <<: {{onEmpty: Reject}}\n",
            "8:7: unknown-field: there is no field `<<` in `spec.rules[0].route`\n"
            "  help: merge keys are not read: write the fields out",
            id="a merge key",
        ),
        pytest.param(
            f"{RULE}      onEmpty: Reject\n      onEmpty: NextRule\n",
            "9:7: duplicate-field: `onEmpty` is set twice\n  help: see line 8",
            id="a field twice",
        ),
        pytest.param(
            f"{RULE}      set: {{defaults: {{a: {{b: 1, b: 2}}}}}}\n",
            "8:34: duplicate-field: `b` is set twice\n  help: see line 8",
            id="a name twice in a value of any shape",
        ),
        pytest.param(
            f"{RULE}      exclude:\n      - name: e\n",
            "9:9: missing-field: `drop` is missing in `spec.rules[0].route.exclude[0]`\n"
            "  help: it must be a mapping of fields",
            id="a field that must be there",
        ),
        pytest.param(
            f"{RULE}      onEmpty: reject\n",
            "8:16: wrong-value: `spec.rules[0].route.onEmpty` must be one of `Reject`,"
            " `NextRule`, not `reject`\n  help: did you mean `Reject`?",
            id="a word in the wrong case",
        ),
        pytest.param(
            f"{RULE}      select: {{minimize: PredictedTTFT}}\n",
            "8:15: wrong-value: `spec.rules[0].route.select` must be a list, each entry a mapping"
            " of fields, not a mapping\n  help: begin each entry with `- `",
            id="a list without dashes",
        ),
        pytest.param(
            f"{RULE}      select: [{{names: qwen}}]\n",
            "8:24: wrong-value: `spec.rules[0].route.select[0].names` must be a list, each entry"
            " text of 1 to 253 characters without control characters, not `qwen`\n"
            "  help: write it as `[...]`",
            id="a name where a list of them belongs",
        ),
        pytest.param(
            f"{RULE}      select: [{{names: [no]}}]\n",
            "8:25: wrong-value: `spec.rules[0].route.select[0].names[0]` must be text of 1 to 253"
            " characters without control characters, not `false`\n  help: put it in quotes",
            id="a word that YAML takes for false",
        ),
        pytest.param(
            f"{RULE}      exclude:\n      - name: e\n        if:\n        drop: {{}}\n",
            "10:12: wrong-value: `spec.rules[0].route.exclude[0].if` must be a mapping of fields,"
            " not `null`\n  help: write its fields, or leave it out",
            id="a condition of nothing does not always hold",
        ),
        pytest.param(
            f"{RULE}      consider: [{{backend: {{labels: {{1: x, '': y}}}}}}]\n",
            "8:44: wrong-value: a name in `spec.rules[0].route.consider[0].backend.labels` must be"
            " text of 1 to 253 characters without control characters",
            id="a label without a name",
        ),
        pytest.param(
            f"{RULE}      set: {{defaults: {{since: 2020-01-01}}}}\n",
            "8:31: wrong-value: `spec.rules[0].route.set.defaults.since` must be a value that JSON"
            " has\n  help: put it in quotes",
            id="a date",
        ),
        pytest.param(
            f"{RULE}      exclude: [{{name: e, drop: {{cost: {{atMost: .nan}}}}}}]\n",
            "8:49: wrong-value: `spec.rules[0].route.exclude[0].drop.cost.atMost` must be a number"
            " from 0 to 1000000000000, not `.nan`",
            id="no number",
        ),
        pytest.param(
            f"{HEAD}spec: {{rules: []}}\n",
            "4:15: wrong-value: `spec.rules` must be a list, each entry a mapping of fields;"
            " from 1 to 1000 of them, not 0",
            id="no rules",
        ),
        pytest.param(
            HEAD.replace("v1alpha1", "v1") + "spec: {rules: [{name: r}]}\n",
            "1:13: wrong-value: `apiVersion` must be `kinference.buoyant.io/v1alpha1`, not"
            " `kinference.buoyant.io/v1`\n  help: did you mean `kinference.buoyant.io/v1alpha1`?",
            id="another version",
        ),
        pytest.param(
            HEAD.replace("Policy", "Polcy") + "spec: {rules: [{name: r, reject: {}}]}\n",
            "2:7: unknown-kind: there is no kind `InferencePolcy`\n"
            "  help: did you mean `InferencePolicy`?\n"
            "p.yaml:4:34: missing-field: `message` is missing in `spec.rules[0].reject`\n"
            "  help: it must be text of 1 to 1000 characters",
            id="a kind that is nearly one, and what is wrong inside",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Secret\ndata: {key: aHVudGVyMg==}\n",
            f"2:7: unknown-kind: there is no kind `Secret`\n  help: {KINDS_LISTED}",
            id="a stranger's kind",
        ),
        pytest.param(
            "metadata: {name: p}\n",
            f"1:1: missing-field: `kind` is missing\n  help: {KINDS_LISTED}",
            id="no kind",
        ),
        pytest.param(
            "kind: [InferencePolicy]\n",
            f"1:7: wrong-value: `kind` must be text\n  help: {KINDS_LISTED}",
            id="two kinds",
        ),
        pytest.param(
            "- a\n- b\n",
            "1:1: wrong-value: a resource is a mapping of fields, and this is none\n"
            "  help: it begins with `apiVersion` and `kind`",
            id="a list",
        ),
        pytest.param(
            "kind: List\nitems: {}\n",
            "2:8: wrong-value: `items` must be a list of resources",
            id="a list of the cluster's without items",
        ),
        pytest.param("", "1:1: empty: there is no resource in it", id="an empty file"),
        pytest.param("# later\n", "1:1: empty: there is no resource in it", id="only words"),
        pytest.param(
            f"{RULE}\texclude: []\n",
            "8:1: syntax: not valid YAML or JSON\n"
            "  help: indent with spaces: YAML takes no tab here",
            id="a tab",
        ),
        pytest.param(
            b"#" * (MAX_BYTES + 1),
            "1:1: too-large: the document is larger than 4 MiB\n"
            "  help: split it into several files",
            id="more than 4 MiB",
        ),
        pytest.param(
            f"{HEAD}spec: {'{a: ' * 80}",
            "4:259: too-deep: nested more than 64 deep",
            id="too deep",
        ),
        pytest.param(b"kind: \xff\n", "1:7: syntax: the text is not UTF-8", id="not UTF-8"),
        pytest.param(
            f"{HEAD}spec: {{rules: [{{name: r}}]}}\n---\n{HEAD}spec: {{rules: [{{name: s}}]}}\n",
            "8:12: duplicate-resource: `InferencePolicy` `default/p` is there twice\n"
            "  help: the first is at p.yaml:3:12",
            id="a resource twice",
        ),
    ],
)
def test_a_finding_has_its_place_and_its_help(text: str | bytes, said: str) -> None:
    assert told(text) == f"p.yaml:{said}"


def test_all_is_said_at_once_over_documents_and_files() -> None:
    broken = f"{HEAD}spec: {{prioritty: 1, mode: on}}\n---\nkind: Pool\n---\na: b: c\n"
    found = load([("a.yaml", broken.encode()), ("b.yaml", b"")]).findings
    assert [f"{each.place}: {each.code}" for each in found] == [
        "a.yaml:4:7: missing-field",
        "a.yaml:4:8: unknown-field",
        "a.yaml:4:28: wrong-value",
        "a.yaml:6:7: unknown-kind",
        "a.yaml:8:5: syntax",
        "b.yaml:1:1: empty",
    ]


def test_findings_without_end_are_counted() -> None:
    found = loaded(f"{HEAD}spec:\n" + "".join(f"  f{n}: 1\n" for n in range(MAX_FINDINGS + 9)))
    assert len(found.findings) == MAX_FINDINGS + 1
    assert str(found.findings[-1]) == "p.yaml:1:1: too-many: there are 10 findings more"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{headers: {authorization: 20301}}", id="a header"),
        pytest.param("{headers: [hunter2]}", id="headers as a list"),
    ],
)
def test_a_header_for_a_backend_is_not_repeated(text: str) -> None:
    said = told(f"{RULE}      set: {text}\n")
    assert said.startswith("p.yaml:8:") and "20301" not in said and "hunter2" not in said


def test_a_header_to_match_is_not_repeated() -> None:
    rule = "{name: r, matches: [{headers: {authorization: 20301}}]}"
    assert told(f"{HEAD}spec: {{rules: [{rule}]}}\n") == (
        "p.yaml:4:62: wrong-value: `spec.rules[0].matches[0].headers.authorization` must be text of"
        " 1 to 253 characters without control characters\n  help: put it in quotes"
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("credentials: {variable: 20301}", id="a key for a variable"),
        pytest.param("credentials: hunter2", id="a key for the credentials"),
        pytest.param("credentials: {key: hunter2}", id="a key in a field of its own"),
        pytest.param("baseURL: 'ftp://user:hunter2@h'", id="a key in an address"),
    ],
)
def test_a_providers_key_is_not_repeated(spec: str) -> None:
    head = HEAD.replace("Policy", "Provider")
    said = told(f"{head}spec:\n  type: OpenAI\n  models: [{{name: m}}]\n  {spec}\n")
    assert said.startswith("p.yaml:7:") and "20301" not in said and "hunter2" not in said


def test_what_a_cluster_adds_is_dropped_and_lists_are_opened() -> None:
    added = ", ".join(f"{name}: {{any: [thing]}}" for name in sorted(CLUSTER_ADDS))
    item = f"""\
- apiVersion: kinference.buoyant.io/v1alpha1
  kind: InferencePool
  metadata: {{name: p, {added}}}
  spec: {{models: [{{name: m}}]}}
  status: {{conditions: []}}
"""
    for head in ("apiVersion: v1\nkind: List", "# no version\nkind: InferencePoolList"):
        found = loaded(f"{head}\nmetadata: {{resourceVersion: ''}}\nitems:\n{item}")
        assert found.findings == ()
        (pool,) = found.resources
        assert isinstance(pool.resource, InferencePool)
        assert pool.resource.key == "default/p"
        assert pool.place(("spec", "models", 0, "name")) == Place("p.yaml", 8, 20)


def test_a_part_that_is_not_written_is_where_the_part_around_it_is() -> None:
    (policy,) = loaded(f"{RULE}      exclude:\n      - {{name: e, drop: {{}}}}\n").resources
    exclude = ("spec", "rules", 0, "route", "exclude")
    assert [
        str(policy.place(path))
        for path in ((*exclude, 0, "drop", "cost", "atMost"), (*exclude, 1), ("spec", "mode"), ())
    ] == ["p.yaml:9:19", "p.yaml:8:7", "p.yaml:4:1", "p.yaml:1:1"]


def test_a_resource_with_a_finding_is_not_given_out_and_others_are() -> None:
    good = f"{HEAD}spec: {{rules: [{{name: r}}]}}\n"
    found = loaded(f"{good.replace('name: p', 'nam: p')}---\n{good}")
    assert [located.resource.key for located in found.resources] == ["default/p"]
    assert len(found.findings) == 2


def test_what_the_offline_tools_read_may_lie_among_policies() -> None:
    found = loaded("kind: ClusterState\nanything: 1\n---\nkind: PolicyTest\n")
    assert found == Loaded((), ())


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_examples_load_and_come_back_from_json(file: Path) -> None:
    found = load([(file.name, file.read_bytes())])
    assert found.findings == () and found.resources
    encoded = b"\n---\n".join(msgspec.json.encode(each.resource) for each in found.resources)
    again = load([("again.json", encoded)])
    assert [each.resource for each in again.resources] == [
        each.resource for each in found.resources
    ]


def test_every_kind_is_read() -> None:
    assert list(KINDS) == KINDS_LISTED.replace("there are ", "").replace("`", "").split(", ")


NAMES_REFUSED = [
    pytest.param("route: {select: [{order: ['a*b']}]}", id="an order with a star"),
    pytest.param("route: {select: [{order: ['a b']}]}", id="an order with a space"),
    pytest.param("route: {select: [{split: [{model: 'm*', weight: 1}]}]}", id="a share of a glob"),
    pytest.param("route: {select: [{split: [{backend: '*', weight: 1}]}]}", id="a share of all"),
    pytest.param("matches: [{pool: {name: 'p*', saturated: true}}]", id="the state of a glob"),
    pytest.param('route: {select: [{names: ["a\\nb"]}]}', id="a glob with a line's end"),
    pytest.param('matches: [{tag: "a\\0"}]', id="a tag with a control character"),
]


@pytest.mark.parametrize("field", NAMES_REFUSED)
def test_a_name_that_cannot_be_one_is_refused(field: str) -> None:
    text = f"{HEAD}spec: {{rules: [{{name: r, {field}}}]}}\n"
    [finding] = load([("p.yaml", text.encode())]).findings
    assert finding.code == "wrong-value"


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("acme", True),
        ("acme.eu-1", True),
        ("a" * 253, True),
        ("a" * 254, False),
        ("Acme", False),
        ("127.0.0.1:8000", False),
        ("a*", False),
        ("-a", False),
        ("a/b", False),
    ],
)
def test_resources_are_named_as_in_kubernetes(name: str, right: bool) -> None:
    text = (
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePool\n"
        f"metadata: {{name: '{name}'}}\nspec: {{}}\n"
    )
    assert (load([("p.yaml", text.encode())]).findings == ()) is right


@pytest.mark.parametrize(
    ("name", "right"), [("org/Model-7B_v1.5:tag", True), ("a b", False), ("a*", False)]
)
def test_models_are_named_by_plain_characters(name: str, right: bool) -> None:
    for field in (
        f"name: '{name}'",
        f"name: m, aliases: ['{name}']",
        f"name: m, classes: ['{name}']",
    ):
        text = (
            "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePool\n"
            f"metadata: {{name: p}}\nspec: {{models: [{{{field}}}]}}\n"
        )
        assert (load([("p.yaml", text.encode())]).findings == ()) is right
