"""What is said of an object in its status: conditions, and the form in force where it is an earlier
one. Pure.

`lastTransitionTime` moves when a condition's status does; a status that says the same is not
written again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from coordinator.kube.written import ACCEPTED, IN_FORCE, Form, Written
from lineside.findings import Finding
from policies.status import MAX_CONDITIONS

RESOLVED, PROGRAMMED = "ResolvedRefs", "Programmed"

MESSAGE_CHARS = 4_000
"""Of one condition; more findings are counted."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, of the object's generation."""

    type: str
    is_true: bool
    reason: str
    message: str

    def to_json(self, generation: int, since: str) -> dict[str, Any]:
        """Return it as Kubernetes has it."""
        return {
            "type": self.type,
            "status": "True" if self.is_true else "False",
            "reason": self.reason,
            "message": self.message,
            "observedGeneration": generation,
            "lastTransitionTime": since,
        }


@dataclass(frozen=True, slots=True)
class Said:
    """What is to be said of one object."""

    generation: int
    """Of the form that was judged."""
    conditions: tuple[Condition, ...]
    in_force: Form | None = None
    """An earlier form, where it is that."""


def said_of(
    each: Written,
    form: Form | None,
    findings: Sequence[Finding],
    unresolved: Sequence[Finding],
    is_rolled_back: bool,
) -> Said:
    """Say what became of an object. `form` is in force; places of findings are fields."""
    good = form == each.form
    earlier = None if good else form
    if good:
        text = listed(findings, each.source) or "it is in force"
        accepted = Condition(ACCEPTED, True, "Accepted", text)
    else:
        accepted = Condition(ACCEPTED, False, "Invalid", listed(findings, each.source))
    resolved = Condition(RESOLVED, True, "ResolvedRefs", "all names are there")
    if unresolved:
        resolved = Condition(RESOLVED, False, "UnresolvedRefs", listed(unresolved, each.source))
    return Said(
        each.form.generation,
        (accepted, resolved, _programmed(good, earlier, is_rolled_back)),
        earlier,
    )


def _programmed(good: bool, earlier: Form | None, is_rolled_back: bool) -> Condition:
    if is_rolled_back:
        text = "`lineside policy rollback` put an earlier set of resources into force"
        return Condition(PROGRAMMED, False, "RolledBack", text)
    if good:
        return Condition(PROGRAMMED, True, "Programmed", "coordinators go by it")
    if earlier is None:
        return Condition(PROGRAMMED, False, "Invalid", "nothing of it is in force")
    text = f"generation {earlier.generation} is in force"
    return Condition(PROGRAMMED, False, "EarlierGeneration", text)


def listed(findings: Iterable[Finding], own: str) -> str:
    """Return findings as one text, a line each; `own` is what the object they are said of is
    called.
    """
    lines, left = list[str](), MESSAGE_CHARS
    every = list(findings)
    for number, each in enumerate(every):
        kind = "warning: " if each.severity == "warning" else ""
        where = each.place.source.removeprefix(own).removeprefix(": ")
        line = f"{where + ': ' if where else ''}{kind}{each.code}: {each.message}"
        line += f" ({each.help})" if each.help else ""
        left -= len(line) + 1
        if left < 0 and lines:
            lines.append(f"and {len(every) - number} more")
            break
        lines.append(line[:MESSAGE_CHARS])
    return "\n".join(lines)


def patch_of(each: Written, said: Said, now: float) -> list[dict[str, Any]] | None:
    """Return the JSON patch that makes a status say this; `None`: it does."""
    before = _by_type(each.status.get("conditions"))
    after = dict(before)
    for condition in said.conditions:
        was = before.get(condition.type, {})
        same = was.get("status") == ("True" if condition.is_true else "False")
        since = was.get("lastTransitionTime") if same else None
        after[condition.type] = condition.to_json(said.generation, since or moment(now))
    conditions = list(after.values())[-MAX_CONDITIONS:]
    there = each.kept.generation if each.kept is not None else None
    kept = said.in_force.generation if said.in_force is not None else None
    if conditions == list(before.values()) and kept == there:
        return None
    status: dict[str, Any] = {"conditions": conditions}
    if said.in_force is not None:
        status[IN_FORCE] = _kept(said.in_force)
    # With the revision the server refuses a patch of what has changed meanwhile. A merge patch
    # would take each `null` in a kept form for the end of a field.
    return [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": each.revision},
        {"op": "add", "path": "/status", "value": status},
    ]


def without_names(said: Said) -> Said:
    """Return what is to be said without the condition on names: what stands there stays."""
    kept = tuple(each for each in said.conditions if each.type != RESOLVED)
    return replace(said, conditions=kept)


def names_said(each: Written, said: Said) -> tuple[bool | None, Condition]:
    """Return the condition on names, and whether the status says the same; `None`: nothing yet."""
    condition = next(each for each in said.conditions if each.type == RESOLVED)
    was = _by_type(each.status.get("conditions")).get(RESOLVED)
    if was is None:
        return None, condition
    status = "True" if condition.is_true else "False"
    same = (was.get("status"), was.get("message")) == (status, condition.message)
    return same, condition


def transitions(each: Written, said: Said) -> list[Condition]:
    """Return the conditions to tell of in events: bad news that is new, and its end."""
    before = _by_type(each.status.get("conditions"))
    told = []
    for condition in said.conditions:
        was = before.get(condition.type)
        was_true = was is None or was.get("status") == "True"
        of_now = was is not None and was.get("observedGeneration") == said.generation
        if condition.is_true != was_true or (not condition.is_true and not of_now):
            told.append(condition)
    return told


def _by_type(said: Any) -> dict[str, Mapping[str, Any]]:
    entries = said if isinstance(said, list) else []
    return {str(each.get("type")): each for each in entries if isinstance(each, dict)}


def _kept(form: Form) -> dict[str, Any]:
    spec = msgspec.json.decode(form.document)["spec"]
    return {"generation": form.generation, "spec": spec}


def moment(unix_s: float) -> str:
    """Return a time as Kubernetes writes it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
