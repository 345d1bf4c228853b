"""What resources mean, checked: all findings of all resources, in the order of the files. Pure.

Each code is in `checks.codes`. Names are checked only where there is an inventory: a policy file by
itself may name what it does not define.
"""

from collections.abc import Iterator, Sequence

from lineside.findings import Finding
from lineside.schema import Path
from policies.checks.codes import CODES, Found
from policies.checks.kinds import check_kind
from policies.checks.names import Names
from policies.checks.order import check_order
from policies.checks.proofs import check_proofs
from policies.checks.routes import check_rule
from policies.checks.targets import check_targets
from policies.checks.words import quoted
from policies.facts import Inventory
from policies.load import Located
from policies.model import InferencePolicy, Resource


def lint(located: Sequence[Located], inventory: Inventory | None = None) -> list[Finding]:
    """Return all findings. Policies are taken to be in force together."""
    findings = [_finding(each, found) for each in located for found in _by_itself(each.resource)]
    if inventory is not None:
        names = Names(inventory, [each.resource for each in located])
        findings += (_finding(each, f) for each in located for f in names.check(each.resource))
    findings += (_finding(each, found) for each, found in check_targets(located, inventory))
    owners = [each for each in located if isinstance(each.resource, InferencePolicy)]
    policies = [each.resource for each in owners if isinstance(each.resource, InferencePolicy)]
    for owner, policy in zip(owners, policies, strict=True):
        findings += (_finding(owner, f) for f in check_proofs(policy, policies, inventory))
    findings += (_finding(owners[f.policy], f.found) for f in check_order(policies, inventory))
    files = list(dict.fromkeys(each.source for each in located))
    return sorted(dict.fromkeys(findings), key=lambda each: _in_order(each, files))


def _by_itself(resource: Resource) -> Iterator[Found]:
    """Check a resource without the others."""
    yield from check_kind(resource)
    if isinstance(resource, InferencePolicy):
        seen: set[str] = set()
        for place, rule in enumerate(resource.spec.rules):
            path = ("spec", "rules", place)
            yield from _duplicate((*path, "name"), "rule", rule.name, seen)
            yield from check_rule(path, rule)
            excludes: set[str] = set()
            for number, exclude in enumerate(rule.route.exclude if rule.route else ()):
                here = (*path, "route", "exclude", number, "name")
                yield from _duplicate(here, "exclude", exclude.name, excludes)


def _duplicate(path: Path, kind: str, name: str, seen: set[str]) -> Iterator[Found]:
    if name in seen:
        message = f"there are two {kind}s called {quoted(name)}"
        yield Found(path, "duplicate-name", message)
    seen.add(name)


def _finding(owner: Located, found: Found) -> Finding:
    place = owner.place(found.path)
    severity = CODES[found.code].severity
    return Finding(place, found.code, found.message, found.help, severity)


def _in_order(finding: Finding, files: Sequence[str]) -> tuple[int, int, int, str]:
    place = finding.place
    return files.index(place.source), place.line or 0, place.col or 0, finding.code
