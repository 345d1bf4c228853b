"""Each finding of lint: its code, its exact place, its words; and what earns none."""

import re
import time
from pathlib import Path

import pytest

from lineside.findings import Finding
from lineside.ids import ModelName
from policies.checks.codes import CODES
from policies.facts import Inventory, Model, Target
from policies.lint import lint
from policies.load import load
from policies.model import BackendType

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "policies" / "examples"

API = "apiVersion: kinference.buoyant.io/v1alpha1"
POLICY = f"{API}\nkind: InferencePolicy\nmetadata: {{name: p}}\n"
"""Three lines."""
RULE = f"{POLICY}spec:\n  rules:\n  - name: r\n"
"""Six lines: the seventh is a field of the rule, in column 5."""
REJECT = "    reject: {message: m}\n"
ROUTE = f"{RULE}    route:\n"
"""Seven lines: the eighth is a field of the route, in column 7."""
EXCLUDE = f"{ROUTE}      exclude:\n      - name: x\n"
"""Nine lines: the tenth is a field of the exclude, in column 9."""
STAGE = f"{ROUTE}      select:\n"
"""Eight lines: the ninth is a stage."""
PROVIDER = f"{API}\nkind: InferenceProvider\nmetadata: {{name: acme}}\nspec:\n"


def of(name: str, type_: BackendType, model: str, *pools: str) -> Target:
    return Target(name, type_, ModelName(model), frozenset({name, *pools}), {}, frozenset(pools))


CLUSTER = Inventory(
    (
        of("e0", BackendType.LOCAL, "glm", "east"),
        of("bedrock", BackendType.PROVIDER, "glm"),
    ),
    {ModelName("glm"): Model(ModelName("glm"), frozenset({"chat"}), frozenset({"large"}))},
)


def found(text: str, inventory: Inventory | None = None) -> list[Finding]:
    loaded = load([("p.yaml", text.encode())])
    assert loaded.findings == ()
    return lint(loaded.resources, inventory)


def told(text: str, inventory: Inventory | None = None) -> list[str]:
    return [line for finding in found(text, inventory) for line in str(finding).splitlines()]


ANNOTATED = f"{API}\nkind: InferencePolicy\nmetadata:\n  name: p\n  annotations:\n"
"""Five lines: the sixth is an annotation, in column 5."""
LOCAL_FIRST = (
    "help: put the local stage first, or exclude providers while the pool is not saturated"
)
UNKNOWN_TOO = "help: exclude providers with an `if` on the tag, which holds while it is unknown"
ALL_APIS = (
    "they are `openai-chat`, `openai-completions`, `openai-responses`, `openai-embeddings`, "
    "`anthropic-messages`"
)
TANGLED = ", ".join(f'"*{a}{b}*"' for a, b in zip("abcdefghijklmn", "bcdefghijklmno", strict=True))
"""More globs of a kind than can be told apart."""

CASES = [
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
        f"{RULE}    matches:\n    - {{tag: a, tags: {{none: [a, b]}}}}\n{REJECT}",
        ["p.yaml:8:23: contradictory-match: no request both has and lacks tag `a`"],
        id="a tag that must be there and must not",
    ),
    pytest.param(
        f"{RULE}    matches:\n    - tags: {{any: [a], none: [a, b]}}\n{REJECT}",
        ["p.yaml:8:14: contradictory-match: a request must have one of `a` and none of them"],
        id="one of some tags, and none of them",
    ),
    pytest.param(
        f"{EXCLUDE}        if: {{inputTokens: {{atLeast: 9, lessThan: 9}}}}\n"
        "        drop: {backend: {type: Local}}\n",
        [
            "p.yaml:10:14: contradictory-match: no number of tokens is within the bounds of "
            "`inputTokens`"
        ],
        id="bounds with nothing between, in an `if`",
    ),
    pytest.param(
        f"{RULE}    matches:\n    - {{stream: true, api: opnai-chat}}\n{REJECT}",
        [
            "p.yaml:8:22: unknown-api: no API that requests come in is called `opnai-chat`",
            f"  help: did you mean `openai-chat`? {ALL_APIS}",
        ],
        id="an API that is misspelt",
    ),
    pytest.param(
        f"{EXCLUDE}        if: {{api: 'grpc-*'}}\n        drop: {{backend: {{type: Local}}}}\n",
        [
            "p.yaml:10:14: unknown-api: no API that requests come in fits `grpc-*`",
            f"  help: {ALL_APIS}",
        ],
        id="APIs that there are not, in an `if`",
    ),
    pytest.param(
        f"{RULE}    matches:\n    - {{api: '*-embeddings', stream: true}}\n{REJECT}",
        ["p.yaml:8:29: contradictory-match: no answer in `openai-embeddings` is streamed"],
        id="an API whose answers are never streamed",
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
        f"{EXCLUDE}        if: {{tag: a}}\n        drop: {{}}\n",
        [
            "p.yaml:11:9: drops-everything: exclude `x` drops every backend",
            "  help: say which backends it is about",
        ],
        id="an empty drop",
    ),
    pytest.param(
        f"{EXCLUDE}        drop: {{backend: {{names: ['*']}}}}\n",
        [
            "p.yaml:10:9: drops-everything: exclude `x` drops every backend",
            "  help: say which backends it is about",
        ],
        id="a drop of all names, without an `if`",
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
        f"{RULE}    matches:\n    - tags: {{}}\n    - inputTokens: {{}}\n{REJECT}",
        [
            "p.yaml:8:7: warning: empty-condition: `tags` names no tag, so that it holds for every "
            "request",
            "  help: say `all`, `any` or `none`",
            "p.yaml:9:7: warning: empty-condition: `inputTokens` has no bound, so that it holds "
            "for every number",
            "  help: say `greaterThan` or `lessThan`",
        ],
        id="conditions that say nothing",
    ),
    pytest.param(
        f"{EXCLUDE}        drop:\n          cost: {{}}\n",
        [
            "p.yaml:11:11: warning: empty-condition: `cost` has no bound, so that it holds for "
            "every number that is known"
        ],
        id="a bound that says nothing",
    ),
    pytest.param(
        f"{RULE}    limits:\n    - {{window: 1m}}\n",
        [
            "p.yaml:8:7: empty-limit: a limit limits nothing: it has no number",
            "p.yaml:8:7: warning: limit-not-enforced: limits are read and not yet enforced",
        ],
        id="a limit without a number",
    ),
    pytest.param(
        f"{STAGE}      - order: [a, b, a]\n",
        ["p.yaml:9:23: warning: named-twice: `a` is in the order twice"],
        id="a backend twice in an order",
    ),
    pytest.param(
        f"{EXCLUDE}        drop:\n          queuedPrompts: {{greaterThan: 3, lessThan: 3}}\n",
        [
            "p.yaml:11:11: never-drops: exclude `x` drops nothing: no number is within the bounds "
            "of `queuedPrompts`"
        ],
        id="bounds with nothing between, in a drop",
    ),
    pytest.param(
        f"{EXCLUDE}        drop:\n          kvCacheUsage: {{greaterThan: 90}}\n",
        [
            "p.yaml:11:11: never-drops: exclude `x` drops nothing: no number is within the bounds "
            "of `kvCacheUsage`"
        ],
        id="a percentage where a fraction is asked for",
    ),
    pytest.param(
        f"{EXCLUDE}        drop:\n          gpuUtilization: {{greaterThan: 0.95}}\n",
        [],
        id="a bound near the top of what there is",
    ),
    pytest.param(
        f"{EXCLUDE}        drop:\n          kvCacheUsage: {{greaterThan: 1}}\n",
        [
            "p.yaml:11:11: never-drops: exclude `x` drops nothing: no number is within the bounds "
            "of `kvCacheUsage`"
        ],
        id="more than all of it",
    ),
    pytest.param(
        f"{EXCLUDE}        if: {{tag: a}}\n"
        "        drop: {backend: {type: Provider}, pools: [a]}\n",
        ["p.yaml:11:9: never-drops: exclude `x` drops nothing: no backend is as `drop` says"],
        id="a provider in a pool",
    ),
    pytest.param(
        f"{ROUTE}      onEmpty: NextRule\n",
        [
            "p.yaml:8:7: warning: next-rule-last: no rule with a route comes after this one: the "
            "default route does"
        ],
        id="the last rule goes on",
    ),
    pytest.param(
        f"{RULE}    matches: [{{tag: a}}]\n",
        [
            "p.yaml:6:5: no-effect: rule `r` does nothing with the requests that it matches",
            "  help: give it a `route`, `reject` or `limits`",
        ],
        id="a rule that does nothing",
    ),
    pytest.param(
        f"{RULE}    matches: []\n    route: {{}}\n",
        [
            "p.yaml:7:5: no-effect: rule `r` matches nothing: `matches` is empty",
            "  help: without `matches` it would match every request",
        ],
        id="a rule that matches nothing",
    ),
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
        f"{ROUTE}      consider: [{{models: {{names: []}}}}]\n",
        ["p.yaml:8:7: nothing-considered: no backend can be considered"],
        id="an empty list of models",
    ),
    pytest.param(
        f"{PROVIDER}  type: Databricks\n  models: [{{name: m}}]\n",
        [
            "p.yaml:5:3: no-base-url: a provider of type `Databricks` has an address of its own",
            "  help: name it in `baseURL`",
        ],
        id="a provider that has no usual address",
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
        f"{ROUTE}      set: {{maxTokens: 9, parameters: {{max_tokens: 99}}, defaults: "
        "{max_completion_tokens: 9}}\n",
        [
            "p.yaml:8:40: set-max-tokens: `maxTokens` caps the output, and `max_tokens` says how "
            "much it is",
            "p.yaml:8:68: set-max-tokens: `maxTokens` caps the output, and "
            "`max_completion_tokens` says how much it is",
        ],
        id="two caps",
    ),
    pytest.param(
        f'{ROUTE}      set: {{headers: {{"x a": b, x-b: "a\\r\\nb", x-c: " d"}}}}\n',
        [
            "p.yaml:8:23: unsendable-header: no header can be called `x a`",
            "p.yaml:8:33: unsendable-header: the value of header `x-b` cannot be sent as it is",
            "p.yaml:8:48: unsendable-header: the value of header `x-c` cannot be sent as it is",
        ],
        id="headers that HTTP cannot carry",
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
        f"{STAGE}      - {{type: Provider}}\n      - {{type: Local}}\n",
        [
            "p.yaml:9:9: warning: provider-first: `select[0]` sends requests to providers before "
            "the local engines of `select[1]` are tried",
            f"  {LOCAL_FIRST}",
        ],
        id="providers before local engines",
    ),
    pytest.param(
        f"{STAGE}      - {{type: Provider, maximize: Cost}}\n",
        [
            "p.yaml:9:26: warning: ranking-direction: the most `Cost` comes first",
            "  help: minimize it",
        ],
        id="the dearest provider first",
    ),
    pytest.param(
        f"{STAGE}      - {{minimize: CachedTokens}}\n",
        [
            "p.yaml:9:10: warning: ranking-direction: the fewest `CachedTokens` come first",
            "  help: maximize it",
        ],
        id="the emptiest cache first",
    ),
    pytest.param(
        f"{RULE}    reject: {{message: m}}\n    route: {{}}\n",
        [
            "p.yaml:8:5: reject-and-route: rule `r` rejects its requests, and its route is never "
            "used"
        ],
        id="a route for what is rejected",
    ),
    pytest.param(
        f"{ROUTE}      set:\n        headers: {{Authorization: x, x-fine: y}}\n",
        ["p.yaml:9:19: reserved-header: header `Authorization` is the gateway's own"],
        id="a header that is ours",
    ),
    pytest.param(
        f"{ROUTE}      set:\n        defaults: {{model: m, top_p: 1}}\n"
        "        parameters: {top_p: 0.5, priority: 2}\n",
        [
            "p.yaml:9:20: reserved-parameter: parameter `model` is the gateway's own",
            "p.yaml:9:30: warning: set-twice: parameter `top_p` has a default and a value that "
            "nobody may change",
            "p.yaml:10:34: reserved-parameter: parameter `priority` is the gateway's own",
        ],
        id="parameters that are ours, and one that is set twice",
    ),
    pytest.param(
        f"{STAGE}      - {{minimize: Cost, order: [a]}}\n",
        [
            "p.yaml:9:26: several-rankings: a stage ranks in one way, and this one has `minimize`, "
            "`order`"
        ],
        id="two ways to rank",
    ),
    pytest.param(
        f"{STAGE}      - split:\n        - {{weight: 1}}\n"
        "        - {backend: a, model: m, weight: 1}\n",
        [
            "p.yaml:10:11: split-share: a share is of a backend or of a model, and this one names "
            "neither a backend nor a model",
            "p.yaml:11:11: split-share: a share is of a backend or of a model, and this one names "
            "both",
        ],
        id="shares of nothing and of two things",
    ),
    pytest.param(
        f"{STAGE}      - split: [{{backend: a, weight: 0}}]\n",
        ["p.yaml:9:9: split-zero: no share of the split has a weight"],
        id="a split without weights",
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
    pytest.param(
        f"{RULE}    matches:\n    - headers: {{x y: a, TE: b, X-A: c, x-a: d}}\n"
        "    reject: {message: m}\n",
        [
            "p.yaml:8:17: unmatchable-header: no header can be called `x y`",
            "  help: use letters, digits and `-`",
            "p.yaml:8:25: unmatchable-header: header `TE` ends at each hop and says nothing of the "
            "request",
            "p.yaml:8:40: unmatchable-header: header `x-a` is `X-A` written otherwise",
            "  help: case makes no difference: keep one",
        ],
        id="headers that never match",
    ),
    pytest.param(
        f"{RULE}    matches: [{{model: 'glm*'}}]\n    route: {{}}\n"
        "  - name: s\n    matches: [{model: glm-5, tenant: a}]\n    route: {}\n",
        [
            "p.yaml:9:5: warning: unreachable-rule: rule `s` never routes: `default/p/r` takes all "
            "that it matches"
        ],
        id="a wider match before a narrower one",
    ),
    pytest.param(
        f"{RULE}    route: {{}}\n  - name: s\n    route:\n"
        "      exclude: [{name: x, if: {tag: a}, drop: {backend: {type: Provider}}}]\n"
        "      select: [{type: Local}]\n",
        [
            "p.yaml:8:5: warning: unreachable-rule: rule `s` never routes: `default/p/r` takes all "
            "that it matches",
            "  help: its guards hold all the same",
        ],
        id="a rule with guards behind one of its own policy",
    ),
    pytest.param(
        f"{RULE}    matches: [{{stream: true}}]\n    route: {{}}\n"
        "  - name: s\n    matches: [{stream: false}]\n    route: {}\n"
        "  - name: t\n    matches: [{tenant: a}]\n    route: {}\n",
        [
            "p.yaml:12:5: warning: unreachable-rule: rule `t` never routes: earlier rules take all "
            "that it matches"
        ],
        id="two matches that leave nothing together",
    ),
    pytest.param(
        f"{RULE}    matches: [{{api: 'openai-*'}}]\n    route: {{}}\n"
        "  - name: s\n    matches: [{api: anthropic-messages}]\n    route: {}\n"
        "  - name: t\n    matches: [{tenant: a}]\n    route: {}\n",
        [
            "p.yaml:12:5: warning: unreachable-rule: rule `t` never routes: earlier rules take all "
            "that it matches"
        ],
        id="matches that leave no API",
    ),
    pytest.param(
        f"{RULE}    matches: [{{tenant: a}}]\n    route: {{}}\n"
        "  - name: s\n    matches: [{tenant: 'a*'}]\n    reject: {message: m}\n",
        [
            "p.yaml:6:5: warning: unreachable-rule: rule `r` never routes: `default/p/s` rejects "
            "all that it matches"
        ],
        id="all of it is rejected",
    ),
    pytest.param(
        f"{STAGE}      - {{type: Local}}\n      - {{type: Provider}}\n      - {{names: [a]}}\n",
        [
            "p.yaml:11:9: warning: unreachable-stage: `select[2]` is never reached: earlier stages "
            "take all that it can"
        ],
        id="a narrower stage after wider ones",
    ),
    pytest.param(
        f"{ROUTE}      consider: [{{backend: {{type: Local}}}}]\n"
        "      select: [{type: Provider}]\n",
        [
            "p.yaml:9:16: warning: unreachable-stage: `select[0]` is never reached: no candidate "
            "can be in it"
        ],
        id="a stage of providers where none is considered",
    ),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
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


def test_a_claim_about_a_provider_that_is_not_there() -> None:
    text = (
        f"{ANNOTATED}    lineside.dev/prove: tag=pii never=Provider:bedrok\n"
        "spec: {rules: [{name: r, matches: [{tag: pii}], route: {}}]}\n"
    )
    assert told(text, CLUSTER) == [
        "p.yaml:6:5: warning: proof-vacuous: no backend of the inventory is called `bedrok`",
        "  help: did you mean `bedrock`?",
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
    tried = [case.values for case in (*CASES, *NAMES)]
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
