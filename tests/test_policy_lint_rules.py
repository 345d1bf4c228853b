"""Findings about rules: what contradicts, is never reached, or does nothing."""

import pytest

from tests.lint_scenes import (
    EXCLUDE,
    LOCAL_FIRST,
    REJECT,
    ROUTE,
    RULE,
    STAGE,
    told,
)

ALL_APIS = (
    "they are `openai-chat`, `openai-completions`, `openai-responses`, `openai-embeddings`, "
    "`anthropic-messages`"
)

RULES = [
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
        f"{ROUTE}      consider: [{{models: {{names: []}}}}]\n",
        ["p.yaml:8:7: nothing-considered: no backend can be considered"],
        id="an empty list of models",
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


@pytest.mark.parametrize(("text", "expected"), RULES)
def test_a_finding_has_its_code_its_place_and_its_words(text: str, expected: list[str]) -> None:
    assert told(text) == expected
