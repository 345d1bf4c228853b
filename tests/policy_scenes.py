"""Policies as documents write them, over one small cluster, for table tests."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import yaml

from lineside.ids import ModelName
from policies.evaluate import compile_
from policies.facts import Inventory, Measured, Model, RequestFacts, Target, Truth
from policies.model import BackendType, InferencePolicy, Measure
from policies.verdict import Chosen, Denied, Empty

LOCAL, PROVIDER = BackendType.LOCAL, BackendType.PROVIDER
GLM, QWEN = ModelName("glm-5.3"), ModelName("qwen-3.6-27b")

MODELS = {
    GLM: Model(GLM, frozenset({"chat"}), frozenset({"large"}), {"family": "glm"}),
    QWEN: Model(QWEN, frozenset({"cheap"}), frozenset({"large", "open"}), {"family": "qwen"}),
}


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The fast one, if it is there: tables have hundreds of documents."""


def target(
    name: str, kind: BackendType, model: ModelName, pool: str = "", zone: str = "a"
) -> Target:
    """Return a target whose backend is called `name`, and by its pool."""
    pools = frozenset({pool} - {""})
    return Target(name, kind, model, pools | {name}, {"zone": zone}, pools)


CLUSTER = Inventory(
    (
        target("e0", LOCAL, GLM, "main"),
        target("e1", LOCAL, GLM, "main", zone="b"),
        target("e2", LOCAL, QWEN, "side"),
        target("bedrock", PROVIDER, GLM),
        target("databricks", PROVIDER, GLM, zone="b"),
        target("databricks", PROVIDER, QWEN, zone="b"),
    ),
    MODELS,
)
"""Places 0 to 5."""


def policy(text: str, name: str = "p", namespace: str = "n", **spec: Any) -> InferencePolicy:
    """Return a policy of rules, which are written as in a document."""
    rules = yaml.load(text, LOADER)
    for number, rule in enumerate(rules):
        rule.setdefault("name", f"r{number}")
    document = {
        "apiVersion": "kinference.buoyant.io/v1alpha1",
        "kind": "InferencePolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"rules": rules, **spec},
    }
    return msgspec.convert(document, InferencePolicy)


def request(model: str = GLM, *, tags: str = "", **facts: Any) -> RequestFacts:
    """Return a request; `tags` are present, those with a `-` before them absent, others unknown."""
    known = {tag.lstrip("-"): Truth.FALSE if tag[0] == "-" else Truth.TRUE for tag in tags.split()}
    return RequestFacts(model=model, tags=known, **facts)


def measured(
    columns: Mapping[Measure, Sequence[float | None]] | None = None,
    ranking: Sequence[float | None] = (1, 2, 3, 4, 5, 6),
) -> Measured:
    """Return measurements by place; what is not given is not known."""
    unknown = [None] * len(CLUSTER.targets)
    return Measured(
        lambda measure, places: [(columns or {}).get(measure, unknown)[place] for place in places],
        lambda places: [ranking[place] for place in places],
    )


def verdict(
    policies: Sequence[InferencePolicy],
    facts: RequestFacts,
    now: Measured | None = None,
    *,
    pools: Mapping[str, bool] | None = None,
    inventory: Inventory = CLUSTER,
    seed: int = 1,
) -> Chosen | Empty | Denied:
    """Return what policies say."""
    plan = compile_(policies).bind(inventory).plan(facts, pools or {})
    return plan if isinstance(plan, Denied) else plan.decide(now or measured(), Random(seed))


def said(verdict: Chosen | Empty | Denied) -> str:
    """Put a verdict into one line: `e0 e1 | bedrock`, stage after stage, or why not."""
    if isinstance(verdict, Denied):
        return f"{verdict.status} by {verdict.source}"
    if isinstance(verdict, Empty):
        return f"refused by {verdict.source}"
    words: list[str] = []
    stage = verdict.ranked[0].stage
    for each in verdict.ranked:
        if each.stage != stage:
            words.append("|")
            stage = each.stage
        chosen = CLUSTER.targets[each.target]
        words.append(
            chosen.id if (chosen.id, chosen.model) != ("databricks", QWEN) else "databricks/qwen"
        )
    return " ".join(words)
