"""Names in the resources in force that nothing bears at the moment. Pure.

Each may be there a moment later, so nothing of this keeps a resource from being in force.
"""

from collections.abc import Iterable, Iterator, Mapping, Set

from coordinator.kube.written import Ident, source_of
from lineside.documents import dotted
from lineside.findings import Finding, Place, did_you_mean
from lineside.schema import Path
from policies.checks.names import Names
from policies.facts import Inventory
from policies.load import Located
from policies.model import InferencePool, InferenceWorkerSet, Resource


def unresolved(
    located: Iterable[Located],
    inventory: Inventory,
    others: Iterable[Resource],
    selecting: Set[str],
) -> Mapping[Ident, tuple[Finding, ...]]:
    """Return what is not there, by object. `others` are in force beside them; `selecting` are the
    worker sets, as `namespace/name`, that select a pod.
    """
    mine = list(located)
    resources = [*(each.resource for each in mine), *others]
    names = Names(inventory, resources)
    sets = {each.metadata.name for each in resources if isinstance(each, InferenceWorkerSet)}
    found: dict[Ident, tuple[Finding, ...]] = {}
    for each in mine:
        ident = _ident(each.resource)
        found_here = [
            *(
                _finding(ident, one.path, one.code, one.message, one.help)
                for one in names.check(each.resource)
            ),
            *_of_kind(ident, each.resource, sets, selecting),
        ]
        if found_here:
            found[ident] = tuple(found_here)
    return found


def _of_kind(
    ident: Ident, resource: Resource, sets: Set[str], selecting: Set[str]
) -> Iterator[Finding]:
    match resource:
        case InferencePool(spec=spec):
            for place, name in enumerate(spec.worker_sets):
                if "*" not in name and name not in sets:
                    message = f"there is no worker set `{name}`"
                    path = ("spec", "workerSets", place)
                    help = did_you_mean(name, sorted(sets))
                    yield _finding(ident, path, "unknown-worker-set", message, help)
        case InferenceWorkerSet(spec=spec):
            if spec.selector and resource.key not in selecting:
                message = "no pod of the namespace has these labels and was ready"
                yield _finding(ident, ("spec", "selector"), "no-pods", message)


def _ident(resource: Resource) -> Ident:
    metadata = resource.metadata
    return type(resource).__name__, metadata.namespace, metadata.name


def _finding(ident: Ident, path: Path, code: str, message: str, help: str = "") -> Finding:
    place = Place(f"{source_of(ident)}: {dotted(path)}")
    return Finding(place, code, message, help, "warning")
