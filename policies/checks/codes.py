"""Every code that `lint` can say, with what it means and what to do. Pure; a table.

docs/policy-findings.md is this table for people. A code never changes its meaning.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lineside.findings import Severity
from lineside.schema import Path


@dataclass(frozen=True, slots=True)
class Code:
    """What a code means. An error is never what the author wanted; a warning may be."""

    severity: Severity
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that is wrong in a resource, and where."""

    path: Path
    code: str
    message: str
    help: str = ""


def _error(meaning: str, remedy: str) -> Code:
    return Code("error", meaning, remedy)


def _warning(meaning: str, remedy: str) -> Code:
    return Code("warning", meaning, remedy)


CODES: Mapping[str, Code] = {
    "address": _error(
        "a provider's address is no root of an API, or holds credentials",
        "write it as `https://HOST/v1`; a key belongs in `credentials`",
    ),
    "backend-target": _error(
        "a gateway backend names both a pool and a provider, or neither",
        "name one of them",
    ),
    "contradictory-match": _error(
        "no request can be what a condition asks for",
        "remove the tag from one of the lists, or correct the bounds",
    ),
    "credentials": _error(
        "credentials name several places where the key is, or none",
        "name one of them",
    ),
    "drops-everything": _error(
        "an exclude drops every backend",
        "say in `drop` which backends it is about; to refuse requests, use `reject`",
    ),
    "duplicate-name": _error(
        "two rules of a policy, two excludes of a rule or two models of a backend have one name; "
        "or two providers, two pools, or a provider and something local, in any namespaces",
        "rename one: policies and records tell them apart by name",
    ),
    "empty-condition": _warning(
        "a mapping of conditions says nothing: it holds for every request",
        "say what it asks for, or leave it out",
    ),
    "empty-limit": _error(
        "a limit has no number",
        "give it `requests`, one of the token counts, or `concurrent`",
    ),
    "limit-not-enforced": _warning(
        "limits are read and not yet enforced",
        "keep it for later, and limit elsewhere until then",
    ),
    "named-twice": _warning(
        "an order names a backend twice; the second place has no effect",
        "remove one",
    ),
    "never-drops": _error(
        "an exclude drops nothing, whatever is measured: a guard that guards nothing",
        "correct the bounds or the selector",
    ),
    "next-rule-last": _warning(
        "`onEmpty: NextRule` in the last rule that routes: the default route comes next",
        "use `Reject`, or add a rule",
    ),
    "no-base-url": _error(
        "a provider has no address, and its type none that all share",
        "name the root of its API in `baseURL`",
    ),
    "no-effect": _error(
        "a rule has neither `route`, `reject` nor `limits`, or an empty list of `matches`",
        "say what it does, or remove it",
    ),
    "no-region": _error(
        "a provider of type `Bedrock` has no region, and needs one for its address or to sign",
        "name it in `region`",
    ),
    "not-checked": _warning(
        "the policies have too many conditions to say which rules are reached",
        "split the set, or use fewer globs that begin with `*`",
    ),
    "nothing-considered": _error(
        "a route considers no backend that can exist",
        "correct `consider`; without it, whatever serves the requested model is considered",
    ),
    "proof-failed": _error(
        "what a `lineside.dev/prove` annotation claims is not so; the message says for whom",
        "exclude those backends with an `if` on the tag, or correct the claim",
    ),
    "proof-malformed": _error(
        "a `lineside.dev/prove` annotation cannot be read",
        "write `tag=NAME never=Provider`, several of them with `;` between",
    ),
    "proof-needs-tag": _warning(
        "a claim holds for requests that have the tag, not while it is unknown whether they do",
        "guard with an exclude's `if`, which holds for unknown tags too",
    ),
    "proof-undecided": _error(
        "a claim could neither be shown nor refuted",
        "prove it with an inventory, or with fewer globs and conditions",
    ),
    "proof-vacuous": _warning(
        "a claim is about a tag that no policy names, or about a backend that there is not",
        "correct the name: the claim protects nothing",
    ),
    "provider-field": _error(
        "a provider has a field that means nothing for its type",
        "remove it, or correct the type",
    ),
    "provider-first": _warning(
        "a stage of providers comes before one of local engines, whether or not engines have room",
        "put the local stage first, or exclude providers while the pool is not saturated",
    ),
    "ranking-direction": _warning(
        "a stage prefers what is worse: fewer cached tokens, a higher cost or a longer wait",
        "use the other of `minimize` and `maximize`",
    ),
    "reject-and-route": _error(
        "a rule rejects requests and has a route for them, which is never used",
        "remove one of them",
    ),
    "reserved-header": _error(
        "`set` adds a header that is the gateway's own",
        "remove it: a provider's key comes from `credentials`",
    ),
    "reserved-parameter": _error(
        "`set` writes a parameter that is the gateway's own",
        "remove it: routing, isolation and accounting depend on it",
    ),
    "secret-not-read": _warning(
        "a provider's key is in a Secret, which is not read yet",
        "mount the Secret and name the `file`, or the environment's `variable`",
    ),
    "set-max-tokens": _error(
        "`set` caps the output and writes a parameter that says otherwise",
        "keep `maxTokens`: clients may ask for less",
    ),
    "set-twice": _warning(
        "`set` has a parameter among its defaults and among those that clients may not change",
        "remove the default, which has no effect",
    ),
    "several-rankings": _error(
        "a stage has several ways to rank its candidates",
        "keep one of `minimize`, `maximize`, `order` and `split`",
    ),
    "split-share": _error(
        "a share of a split names both a backend and a model, or neither",
        "name one of them",
    ),
    "split-zero": _error(
        "no share of a split has a weight: nobody is in the stage",
        "give one share a weight above zero",
    ),
    "tag-falls-through": _warning(
        "a rule that keeps a tag's requests local does not match while the tag is unknown, and "
        "another rule may then send them to a provider",
        "exclude providers with an `if` on the tag, which holds for unknown tags too",
    ),
    "unknown-api": _error(
        "a condition asks for an API that no request comes in",
        "write one of the APIs of docs/policies.md, or a glob that fits one",
    ),
    "unknown-backend": _error(
        "no backend or pool of the inventory has the name, or fits the glob",
        "correct the name, or add the resource",
    ),
    "unknown-model": _error(
        "no model of the inventory has the name, alias or class, or fits the glob",
        "correct the name, or add the model to a pool or a provider",
    ),
    "unmatchable-header": _error(
        "a header that is asked for cannot arrive under this name",
        "correct the name; headers that end at each hop cannot be asked for",
    ),
    "unreachable-rule": _warning(
        "a rule never routes: earlier ones take or reject every request that it matches; not said "
        "of one with guards, where other policies do",
        "raise its policy's priority, narrow the earlier rule, or remove it; its guards still hold",
    ),
    "unreachable-stage": _warning(
        "no candidate of the route can get into a stage that an earlier one does not take",
        "put the wider stage last, or correct the stage's filters",
    ),
    "unsendable-header": _error(
        "`set` adds a header that HTTP cannot carry",
        "use letters, digits and `-` in its name, and one line of text as its value",
    ),
}
