"""What backends are called, over all resources: policies know names without namespaces. Pure.

A provider must not be called like another one or like anything local, nor a pool like another pool.
That a pool and a worker set share a name is no fault: both mean local engines.
"""

from collections.abc import Iterator, Sequence

from lineside.findings import Place
from lineside.schema import Path
from policies.checks.codes import Found
from policies.checks.words import quoted
from policies.facts import Inventory
from policies.inventory import DEFAULT_POOL
from policies.load import Located
from policies.model import BackendType, InferencePool, InferenceProvider, InferenceWorkerSet

_NAME: Path = ("metadata", "name")

_LOCAL = {InferencePool: "pool", InferenceWorkerSet: "worker set"}
"""What is not a provider, and what people call it."""


def check_targets(
    located: Sequence[Located], inventory: Inventory | None
) -> Iterator[tuple[Located, Found]]:
    """Find every name that means two things."""
    seen: dict[tuple[type, str], Place] = {}
    for each in located:
        kind, name = type(each.resource), each.resource.metadata.name
        if kind is not InferenceProvider and kind not in _LOCAL:
            continue
        if (first := seen.setdefault((kind, name), each.place(_NAME))) != each.place(_NAME):
            what = _LOCAL.get(kind, "provider")
            yield each, _found(f"there are two {what}s called {quoted(name)}", f"at {first}")
    local = _local(located, inventory)
    for each in located:
        name = each.resource.metadata.name
        if isinstance(each.resource, InferenceProvider) and name in local:
            what, where = local[name]
            yield each, _found(f"provider {quoted(name)} is called like {what}", where)


def _found(message: str, where: str) -> Found:
    help_ = "policies know names without namespaces: rename one"
    return Found(_NAME, "duplicate-name", message, f"{help_}; the other is {where}")


def _local(located: Sequence[Located], inventory: Inventory | None) -> dict[str, tuple[str, str]]:
    """Return what is called local, with what it is and where it is written."""
    local = {DEFAULT_POOL: ("the pool of all other engines", "always there")}
    for target in inventory.targets if inventory is not None else ():
        if target.type is BackendType.LOCAL:
            local |= dict.fromkeys(target.names, ("an engine or its pool", "in the inventory"))
    for each in located:
        if isinstance(each.resource, InferenceWorkerSet):
            for place, engine in enumerate(each.resource.spec.engines):
                name = engine.url.rpartition("://")[2].rstrip("/")
                where = each.place(("spec", "engines", place, "url"))
                local[name] = ("an engine", f"at {where}")
        if (what := _LOCAL.get(type(each.resource))) is not None:
            name = each.resource.metadata.name
            local[name] = (f"a {what}", f"at {each.place(_NAME)}")
    return local
