"""What fields of one struct mean together, in CEL: errors that a cluster refuses by itself. Pure.

Each has the code that `lint` says for the same mistake, and its words; both refuse the same
objects. Not said here: what is a warning, what needs another resource, and what costs the
API server too much (names that are there twice, bounds that contradict each other).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.backends import ROOTS


@dataclass(frozen=True, slots=True)
class Rule:
    """An expression that holds of every good object."""

    code: str
    expression: str


def _at_most_one(*fields: str) -> str:
    return f"{_count(*fields)} <= 1"


def _exactly_one(*fields: str) -> str:
    return f"{_count(*fields)} == 1"


def _count(*fields: str) -> str:
    return " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)


def _any(*fields: str) -> str:
    return " || ".join(f"has(self.{field})" for field in fields)


_WITH_ROOT = ", ".join(f"'{each}'" for each in (*ROOTS, "Bedrock"))

_NUMBERS = (
    "requests",
    "inputTokens",
    "outputTokens",
    "uncachedTokens",
    "totalTokens",
    "concurrent",
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "Rule": (
        Rule(
            "no-effect",
            "has(self.route) || has(self.reject) || (has(self.limits) && size(self.limits) > 0)",
        ),
        Rule("no-effect", "!has(self.matches) || size(self.matches) > 0"),
        Rule("reject-and-route", "!has(self.reject) || !has(self.route)"),
    ),
    "Limit": (Rule("empty-limit", _any(*_NUMBERS)),),
    "Stage": (
        Rule("several-rankings", _at_most_one("minimize", "maximize", "order", "split")),
        Rule("split-zero", "!has(self.split) || self.split.exists(share, share.weight > 0)"),
    ),
    "Share": (Rule("split-share", "has(self.backend) != has(self.model)"),),
    "ProviderSpec": (
        Rule("no-base-url", f"has(self.baseURL) || self.type in [{_WITH_ROOT}]"),
        Rule(
            "no-region",
            "self.type != 'Bedrock' || has(self.region) || (has(self.baseURL) &&"
            " !(has(self.credentials) && has(self.credentials.accessKey)))",
        ),
        Rule("provider-field", "!has(self.region) || self.type == 'Bedrock'"),
        Rule(
            "provider-field",
            "!has(self.apiVersion) || self.type in ['Anthropic', 'AzureOpenAI']",
        ),
        Rule("provider-field", "!has(self.apis) || self.type != 'Bedrock'"),
        Rule(
            "provider-field",
            "!(has(self.credentials) && has(self.credentials.accessKey)) || self.type == 'Bedrock'",
        ),
    ),
    "Credentials": (Rule("credentials", _exactly_one("file", "variable", "secret", "accessKey")),),
    "BackendSpec": (Rule("backend-target", "has(self.pool) != has(self.provider)"),),
}
"""By the name of the struct."""
