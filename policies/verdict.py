"""What the policies say about one request: which models to consider, and who decided it. Pure.

Until the policy language arrives every request gets the default route. The names in a verdict go
into the decision record, so that "why" can be answered for the default as for any rule.
"""

from dataclasses import dataclass

from lineside.ids import ModelName


@dataclass(frozen=True, slots=True)
class Verdict:
    """The route of one request. Candidates are ranked by predicted time to first token."""

    policy: str
    rule: str
    stage: str
    models: tuple[ModelName, ...]
    """Names whose engines are considered."""


def default_route(model: ModelName) -> Verdict:
    """Consider the engines that serve the requested model, and no providers."""
    return Verdict(policy="default", rule="default", stage="default", models=(model,))
