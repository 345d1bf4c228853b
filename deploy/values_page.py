"""docs/chart-values.md out of the chart's values and the comments above them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

HEAD = """\
# Values of the chart

Written by `make manifests` from the chart `lineside`; [kubernetes.md](kubernetes.md) is the guide.
What `coordinator.config` and `agent.config` take is in [settings.md](settings.md); the chart sets
listeners and mounted files itself.

| value | default | meaning |
| --- | --- | --- |
"""


class Value(NamedTuple):
    """One value. `default` is as the file writes it; empty: there are values below it."""

    path: str
    default: str
    meaning: str


def page(text: str) -> str:
    """Return the page."""
    rows = (
        f"| `{value.path}` | `{value.default}` | {value.meaning} |\n"
        for value in values(text)
        if value.default
    )
    return HEAD + "".join(row for row in rows)


def values(text: str) -> Iterator[Value]:
    """Yield each value with what stands above it, in order."""
    above: list[str] = []
    last: list[str] = []
    at: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        said, indent = line.strip(), (len(line) - len(line.lstrip())) // 2
        if said.startswith("#"):
            above.append(said.lstrip("# "))
        elif found := re.match(r"([A-Za-z]+):(?: (.*))?$", said):
            at = [*at[:indent], found[1]]
            default = found[2] or _list_below(lines[number + 1 :], indent)
            last = above or last  # a comment may be about all that stands below it
            yield Value(".".join(at), default, _sentence(last))
            above = []
        elif not said:
            above = []


def _list_below(lines: list[str], indent: int) -> str:
    """Return a list that is written below its name, on one line."""
    items = []
    for line in lines:
        if not line.startswith(f"{'  ' * indent}- "):
            break
        items.append(line.strip().removeprefix("- "))
    return f"[{', '.join(items)}]" if items else ""


def _sentence(above: list[str]) -> str:
    text = " ".join(above)
    return text.replace("|", "\\|")
