"""What goes into an image: the part of requirements.lock that an extra needs, and its SBOM. Pure
but for the metadata of what is installed, which must be what the lock says.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)( ?;[^\\]*)? \\$", re.M)


def lock_of(extra: str) -> str:
    """Return the entries of the lock, hashes and all, that a process needs at run time."""
    entries = _entries((ROOT / "requirements.lock").read_text())
    return "".join(entries[name] for name in _closure(extra))


def sbom_of(extra: str) -> str:
    """Return a CycloneDX document of the same packages."""
    pins = [(match[1], match[2]) for match in _PIN.finditer(lock_of(extra))]
    return json.dumps(_cyclonedx(extra, pins), indent=1) + "\n"


def _entries(lock: str) -> Mapping[str, str]:
    """Return each package's lines by its name."""
    starts = [match.start() for match in _PIN.finditer(lock)]
    parts = [lock[a:b] for a, b in zip(starts, [*starts[1:], len(lock)], strict=True)]
    entries: dict[str, str] = {}
    for part in parts:
        kept = [line for line in part.splitlines() if line and not line.startswith("#")]
        entries[canonicalize_name(part.partition("==")[0])] = "\n".join(kept) + "\n"
    return entries


def _closure(extra: str) -> Sequence[str]:
    """Return the names of all that the distribution with an extra requires, sorted."""
    seen: dict[str, frozenset[str]] = {}
    todo = [("lineside", frozenset({extra}))]
    while todo:
        name, extras = todo.pop()
        if name in seen and extras <= seen[name]:
            continue
        seen[name] = seen.get(name, frozenset()) | extras
        todo += _required(name, seen[name])
    return sorted(seen.keys() - {"lineside"})


def _required(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in distribution(name).requires or ():
        each = Requirement(text)
        chosen = extras or frozenset({""})
        if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in chosen):
            yield canonicalize_name(each.name), frozenset(each.extras)


def _cyclonedx(extra: str, pins: Sequence[tuple[str, str]]) -> Mapping[str, object]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": f"lineside-{extra}"}},
        "components": [
            {
                "type": "library",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{canonicalize_name(name)}@{version}",
            }
            for name, version in pins
        ],
    }
