"""An object of our kinds as the cluster has it, and what its resource is read from. Pure.

A form is what somebody wrote at one time. The status keeps the form that is in force while a later
one cannot be used, so that no restart loses it.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from coordinator.kube.reflection import Object
from policies.model import API_VERSION

Ident: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name."""

CONDITIONS = "conditions"

IN_FORCE = "inForce"
"""The field of a status that keeps a form."""

ACCEPTED = "Accepted"
"""The condition that says what was judged."""

_KEPT_METADATA = ("name", "namespace", "labels", "annotations")

_TOO_DEEP = "nested too deep"

_BULKY = "kubectl.kubernetes.io/last-applied-configuration"
"""An annotation that repeats the whole object."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of one object, which is the same for as long as the `uid` is."""

    uid: str
    generation: int
    document: bytes
    """What `load` reads: JSON, a value a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One object."""

    ident: Ident
    revision: str
    created: str
    form: Form
    kept: Form | None
    """What its status says is in force instead."""
    is_accepted: bool
    """Whether its status says that this very form was judged good."""
    status: Any
    """Its conditions; what else is in it may be as large as somebody likes."""

    @property
    def source(self) -> str:
        """What findings call it."""
        return source_of(self.ident)


def source_of(ident: Ident) -> str:
    """Return what findings call an object."""
    kind, namespace, name = ident
    return f"{kind} {namespace}/{name}"


def written(kind: str, found: Object) -> Written:
    """Read an object. Whatever it holds: what is wrong with it is for `load` to say."""
    metadata = _mapping(found.get("metadata"))
    ident = (kind, str(metadata.get("namespace", "")), str(metadata.get("name", "")))
    uid = str(metadata.get("uid", ""))
    status = _mapping(found.get("status"))
    form = Form(uid, _number(metadata.get("generation")), _document(kind, found, found.get("spec")))
    return Written(
        ident=ident,
        revision=str(metadata.get("resourceVersion", "")),
        created=str(metadata.get("creationTimestamp", "")),
        form=form,
        kept=_kept(kind, found, uid, status.get(IN_FORCE)),
        is_accepted=_is_accepted(status.get(CONDITIONS), form.generation),
        status={name: status[name] for name in status if name == CONDITIONS},
    )


def _document(kind: str, found: Object, spec: Any) -> bytes:
    metadata = _mapping(found.get("metadata"))
    said = {name: metadata[name] for name in _KEPT_METADATA if name in metadata}
    if _BULKY in _mapping(said.get("annotations")):
        said["annotations"] = {k: v for k, v in said["annotations"].items() if k != _BULKY}
    whole = {"apiVersion": API_VERSION, "kind": kind, "metadata": said, "spec": spec}
    try:
        return msgspec.json.format(msgspec.json.encode(whole), indent=2)
    except RecursionError:  # nearly too deep to be read at all: what stands for it is refused, too
        return msgspec.json.format(msgspec.json.encode({**whole, "spec": _TOO_DEEP}), indent=2)


def _is_accepted(conditions: Any, generation: int) -> bool:
    said = (_mapping(each) for each in (conditions if isinstance(conditions, list) else ()))
    accepted = next((each for each in said if each.get("type") == ACCEPTED), {})
    return (accepted.get("status"), accepted.get("observedGeneration")) == ("True", generation)


def _kept(kind: str, found: Object, uid: str, said: Any) -> Form | None:
    """Return a form of an earlier time; its labels and annotations are those of now."""
    said = _mapping(said)
    if not isinstance(said.get("spec"), dict):
        return None
    return Form(uid, _number(said.get("generation")), _document(kind, found, said["spec"]))


def _mapping(said: Any) -> dict[str, Any]:
    return said if isinstance(said, dict) else {}


def _number(said: Any) -> int:
    return said if isinstance(said, int) else 0
