"""Findings about providers and gateway backends, and about names that nobody bears."""

import pytest

from tests.lint_scenes import (
    API,
    CLUSTER,
    EXCLUDE,
    PROVIDER,
    ROUTE,
    RULE,
    STAGE,
    found,
    told,
)

BACKENDS = [
    pytest.param(
        f"{API}\nkind: GatewayBackend\nmetadata: {{name: b}}\nspec: {{}}\n",
        [
            "p.yaml:4:1: backend-target: a gateway backend is a pool or a provider, and this one "
            "names neither a pool nor a provider"
        ],
        id="a gateway backend that points nowhere",
    ),
    pytest.param(
        f"{API}\nkind: GatewayBackend\nmetadata: {{name: b}}\nspec: {{pool: a, provider: b}}\n",
        [
            "p.yaml:4:1: backend-target: a gateway backend is a pool or a provider, and this one "
            "names both"
        ],
        id="a gateway backend that points to two things",
    ),
    pytest.param(
        f"{PROVIDER}  type: OpenAI\n  models: [{{name: m}}]\n"
        "  credentials: {file: a, variable: B}\n",
        [
            "p.yaml:7:3: credentials: a key is read from one of `file`, `variable`, `secret`, "
            "`accessKey`, and `file` and `variable` are given"
        ],
        id="a key from two places",
    ),
    pytest.param(
        f"{PROVIDER}  type: OpenAI\n  models: [{{name: m}}]\n  credentials: {{}}\n",
        [
            "p.yaml:7:3: credentials: a key is read from one of `file`, `variable`, `secret`, "
            "`accessKey`, and none of them is given"
        ],
        id="credentials without a place",
    ),
    pytest.param(
        f"{RULE}    matches: [{{tenant: a}}]\n    route: {{}}\n  - name: r\n    route: {{}}\n",
        ["p.yaml:9:5: duplicate-name: there are two rules called `r`"],
        id="two rules of one name",
    ),
    pytest.param(
        f"{EXCLUDE}        drop: {{cost: {{greaterThan: 1}}}}\n"
        "      - name: x\n        drop: {cost: {lessThan: 1}}\n",
        ["p.yaml:11:9: duplicate-name: there are two excludes called `x`"],
        id="two excludes of one name",
    ),
    pytest.param(
        f"{PROVIDER}  type: OpenAI\n  models:\n  - name: m\n  - name: m\n",
        ["p.yaml:8:5: duplicate-name: model `m` is there twice"],
        id="two models of one name",
    ),
    pytest.param(
        f"{PROVIDER}  type: Databricks\n  models: [{{name: m}}]\n",
        [
            "p.yaml:5:3: no-base-url: a provider of type `Databricks` has an address of its own",
            "  help: name it in `baseURL`",
        ],
        id="a provider that has no usual address",
    ),
    *(
        pytest.param(
            f"{PROVIDER}  type: OpenAI\n  baseURL: '{url}'\n  models: [{{name: m}}]\n",
            [f"p.yaml:6:3: address: `baseURL` {why}"],
            id=url,
        )
        for url, why in (
            ("http://[::1/v1", "is no URL"),
            ("http://a:99999/v1", "is no URL"),
            ("http://a..b/v1", "names no host that can be reached"),
            ("http://[::1]x/v1", "names no host that can be reached"),
            (f"http://{'a' * 64}/v1", "names no host that can be reached"),
            ("http://:80/v1", "names no host that can be reached"),
            ("https://me:word@a/v1", "holds credentials"),
            ("https://a/v1?key=1", "has a query or a fragment"),
            ("https://a/v1#b", "has a query or a fragment"),
        )
    ),
    pytest.param(
        f"{PROVIDER}  type: OpenAI\n  models: [{{name: m}}]\n---\n"
        f"{API}\nkind: InferenceProvider\nmetadata: {{name: acme, namespace: b}}\n"
        "spec: {type: OpenAI, models: [{name: m}]}\n---\n"
        f"{API}\nkind: InferencePool\nmetadata: {{name: acme}}\nspec: {{}}\n",
        [
            "p.yaml:3:12: duplicate-name: provider `acme` is called like a pool",
            "  help: policies know names without namespaces: rename one; the other is at "
            "p.yaml:15:12",
            "p.yaml:10:12: duplicate-name: there are two providers called `acme`",
            "  help: policies know names without namespaces: rename one; the other is at "
            "p.yaml:3:12",
            "p.yaml:10:12: duplicate-name: provider `acme` is called like a pool",
            "  help: policies know names without namespaces: rename one; the other is at "
            "p.yaml:15:12",
        ],
        id="a name in two namespaces, and of two kinds",
    ),
    pytest.param(
        f"{PROVIDER}  type: OpenAI\n  models: [{{name: m}}]\n---\n"
        f"{API}\nkind: InferenceWorkerSet\nmetadata: {{name: w}}\n"
        "spec: {engines: [{url: 'http://acme'}]}\n",
        [
            "p.yaml:3:12: duplicate-name: provider `acme` is called like an engine",
            "  help: policies know names without namespaces: rename one; the other is at "
            "p.yaml:11:19",
        ],
        id="a provider called like an engine",
    ),
    pytest.param(
        f"{PROVIDER}  type: Bedrock\n  models: [{{name: m}}]\n",
        [
            "p.yaml:5:3: no-region: a provider of type `Bedrock` is in one region",
            "  help: name it: `region: us-east-1`",
        ],
        id="a provider in no region",
    ),
    pytest.param(
        f"{PROVIDER}  type: Bedrock\n  baseURL: https://b.example\n  models: [{{name: m}}]\n"
        "  credentials: {accessKey: {}}\n",
        [
            "p.yaml:5:3: no-region: a provider of type `Bedrock` is in one region",
            "  help: name it: `region: us-east-1`",
        ],
        id="a provider that is signed for, in no region",
    ),
    pytest.param(
        f"{PROVIDER}  type: OpenAI\n  models: [{{name: m}}]\n  region: eu-west-1\n"
        "  apiVersion: preview\n  credentials: {accessKey: {file: f}}\n",
        [
            "p.yaml:7:3: provider-field: `region` means nothing for a provider of type `OpenAI`",
            "p.yaml:8:3: provider-field: `apiVersion` means nothing for a provider of type "
            "`OpenAI`",
            "p.yaml:9:17: provider-field: a provider of type `OpenAI` takes an API key, and signs "
            "nothing",
        ],
        id="fields that another type has",
    ),
    pytest.param(
        f"{PROVIDER}  type: Bedrock\n  region: eu-west-1\n  models: [{{name: m}}]\n"
        "  apis: [openai-chat]\n",
        ["p.yaml:8:3: provider-field: `apis` means nothing for a provider of type `Bedrock`"],
        id="an API that a type cannot speak",
    ),
    pytest.param(
        f"{PROVIDER}  type: Anthropic\n  models: [{{name: m}}]\n"
        "  credentials: {secret: {name: s}}\n",
        [
            "p.yaml:7:17: warning: secret-not-read: a key in a Secret is not read yet, so the "
            "provider is asked without one"
        ],
        id="a key that is not read yet",
    ),
]


@pytest.mark.parametrize(("text", "expected"), BACKENDS)
def test_a_finding_has_its_code_its_place_and_its_words(text: str, expected: list[str]) -> None:
    assert told(text) == expected


NAMES = [
    pytest.param(
        f"{ROUTE}      consider:\n      - models: {{names: [glm, glmm, 'q*'], classes: [lage]}}\n"
        "        pools: [esat]\n        backend: {names: [e1]}\n",
        [
            "p.yaml:9:31: unknown-model: no model of the inventory is called `glmm`",
            "  help: did you mean `glm`?",
            "p.yaml:9:37: unknown-model: no model of the inventory fits `q*`",
            "p.yaml:9:54: unknown-model: no model of the inventory is called `lage`",
            "  help: did you mean `large`?",
            "p.yaml:10:17: unknown-backend: no pool of the inventory is called `esat`",
            "  help: did you mean `east`?",
            "p.yaml:11:27: unknown-backend: no backend of the inventory is called `e1`",
        ],
        id="in `consider`",
    ),
    pytest.param(
        f"{STAGE}      - order: [bedrok, e0, east]\n      - split: [{{model: cat, weight: 1}}]\n",
        [
            "p.yaml:9:17: unknown-backend: no backend of the inventory is called `bedrok`",
            "  help: did you mean `bedrock`?",
            "p.yaml:10:18: unknown-model: no model of the inventory is called `cat`",
            "  help: did you mean `chat`?",
        ],
        id="in stages",
    ),
    pytest.param(
        f"{RULE}    matches:\n    - {{model: not-yet, pool: {{name: west, saturated: true}}}}\n"
        "    route: {select: [{type: Local}]}\n",
        [
            "p.yaml:8:31: unknown-backend: no pool of the inventory is called `west`",
            "  help: did you mean `east`?",
        ],
        id="in a match, where a model may be a name for what `consider` chooses",
    ),
    pytest.param(
        f"{API}\nkind: GatewayBackend\nmetadata: {{name: b}}\nspec: {{pool: bedrock}}\n",
        ["p.yaml:4:8: unknown-backend: no pool of the inventory is called `bedrock`"],
        id="in a gateway backend",
    ),
]


@pytest.mark.parametrize(("text", "expected"), NAMES)
def test_names_are_checked_where_there_is_an_inventory(text: str, expected: list[str]) -> None:
    assert told(text, CLUSTER) == expected
    assert {f.code for f in found(text)} & {"unknown-backend", "unknown-model"} == set()
