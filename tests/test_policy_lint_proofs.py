"""Findings about what policies claim, and about tags that fall through."""

import pytest

from tests.lint_scenes import (
    ANNOTATED,
    CLUSTER,
    POLICY,
    RULE,
    UNKNOWN_TOO,
    told,
)

TANGLED = ", ".join(f'"*{a}{b}*"' for a, b in zip("abcdefghijklmn", "bcdefghijklmno", strict=True))
"""More globs of a kind than can be told apart."""

PROOFS = [
    pytest.param(
        f"{POLICY}spec:\n  rules:\n  - name: r\n    matches: [{{model: {TANGLED.split(',')[0]}}}]\n"
        f"    route: {{consider: [{{models: {{names: [{TANGLED}], labels: {{a: b}}}}}}]}}\n",
        [
            "p.yaml:4:1: warning: not-checked: which rules are reached was not checked: there are "
            "too many conditions"
        ],
        id="more globs than can be told apart",
    ),
    pytest.param(
        f"{ANNOTATED}    lineside.dev/prove: tag=pi never=Local\nspec: {{rules: [{{name: r, "
        "matches: [{tag: pii}], reject: {message: m}}, {name: s, route: {select: "
        "[{type: Provider}]}}]}\n",
        [
            "p.yaml:6:5: warning: proof-vacuous: no policy names tag `pi`",
            "  help: did you mean `pii`?",
            "p.yaml:7:37: warning: tag-falls-through: while tag `pii` is unknown, `default/p/s` "
            "can send the request to a provider",
            f"  {UNKNOWN_TOO}",
        ],
        id="a claim about a tag that nobody names",
    ),
    pytest.param(
        f"{ANNOTATED}    lineside.dev/prove: tag=pii never=Provider\n"
        "spec: {rules: [{name: r, route: {}}]}\n",
        [
            "p.yaml:6:5: proof-failed: a request for `some-model` with tag `pii` can be sent to "
            "provider `some-backend` by `default/p/r/default`",
            "p.yaml:6:5: warning: proof-vacuous: no policy names tag `pii`",
        ],
        id="a claim that is not so",
    ),
    pytest.param(
        f"{ANNOTATED}    lineside.dev/prove: tag=a never=provider; b; tag=c; never=Local\n"
        "spec: {rules: [{name: r, reject: {message: m}}]}\n",
        [
            "p.yaml:6:5: proof-malformed: `provider` says of no backend that it is meant",
            "  help: did you mean `Provider`?",
            "p.yaml:6:5: proof-malformed: `b` is not part of a claim",
            "  help: write `tag=NAME never=Provider`, several of them with `;` between",
            "p.yaml:6:5: proof-malformed: `never` is missing from `tag=c`",
            "  help: write `tag=NAME never=Provider`, several of them with `;` between",
            "p.yaml:6:5: proof-malformed: `tag` is missing from `never=Local`",
            "  help: write `tag=NAME never=Provider`, several of them with `;` between",
        ],
        id="claims that cannot be read",
    ),
    pytest.param(
        f"{ANNOTATED}    lineside.dev/prove: tag=pii never=Provider\n"
        "spec:\n  rules:\n  - {name: r, matches: [{tag: pii}], reject: {message: m}}\n"
        "  - {name: s, route: {}}\n",
        [
            "p.yaml:6:5: warning: proof-needs-tag: a request for `some-model` of which nobody "
            "knows whether it has tag `pii` can be sent to provider `some-backend` by "
            "`default/p/s/default`",
            "p.yaml:9:26: warning: tag-falls-through: while tag `pii` is unknown, `default/p/s` "
            "can send the request to a provider",
            f"  {UNKNOWN_TOO}",
        ],
        id="a claim that needs the tag to be known",
    ),
    pytest.param(
        f"{ANNOTATED}    lineside.dev/prove: tag=pii never=Provider\n"
        "spec: {rules: [{name: r, route: {consider: [{models: {names: ["
        f"{TANGLED}]}}}}]}}}}]}}\n",
        [
            "p.yaml:6:5: proof-undecided: not proved for tag `pii`: the policies tell too many "
            "names apart",
            "p.yaml:6:5: warning: proof-vacuous: no policy names tag `pii`",
            "p.yaml:7:1: warning: not-checked: which rules are reached was not checked: there are "
            "too many conditions",
        ],
        id="a claim that is not settled",
    ),
    pytest.param(
        f"{RULE}    matches:\n    - {{tag: pii}}\n    route: {{select: [{{type: Local}}]}}\n"
        "  - name: s\n    route: {}\n",
        [
            "p.yaml:8:8: warning: tag-falls-through: while tag `pii` is unknown, `default/p/s` can "
            "send the request to a provider",
            f"  {UNKNOWN_TOO}",
        ],
        id="a data rule written as a match",
    ),
]


@pytest.mark.parametrize(("text", "expected"), PROOFS)
def test_a_finding_has_its_code_its_place_and_its_words(text: str, expected: list[str]) -> None:
    assert told(text) == expected


def test_a_claim_about_a_provider_that_is_not_there() -> None:
    text = (
        f"{ANNOTATED}    lineside.dev/prove: tag=pii never=Provider:bedrok\n"
        "spec: {rules: [{name: r, matches: [{tag: pii}], route: {}}]}\n"
    )
    assert told(text, CLUSTER) == [
        "p.yaml:6:5: warning: proof-vacuous: no backend of the inventory is called `bedrok`",
        "  help: did you mean `bedrock`?",
    ]
