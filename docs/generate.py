"""Writes docs/settings.md, docs/cli.md and the table of metrics in docs/operations.md.

From the settings structs and the strings below their fields, from `--help`, and from the registries
of both processes. `make docs` runs it; tests/test_docs.py holds that running it changes nothing.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from agent.config import AgentConfig
from agent.metrics import AgentMetrics
from agent.node import Node
from cli.main import parser
from coordinator.build import build
from coordinator.config import Config, EngineSpec, Gateway
from lineside.clock import SystemClock
from lineside.meanings import field_docs
from lineside.schema import Setting, describe, settings_of
from lineside.signals import NodeGpus

DOCS = Path(__file__).parent

METRICS_BEGIN = "<!-- metrics: written by `make docs` -->"
METRICS_END = "<!-- end of metrics -->"

SETTINGS = """\
# Settings

Written by `make docs` from `coordinator/config.py` and `agent/config.py`.

Each process reads one file (`--config FILE`, YAML or JSON; `-` is standard input), then the
environment, then its flags; the later wins. A setting `timeouts.idle_s` is the variable
`LINESIDE_TIMEOUTS_IDLE_S` and the flag `--timeouts-idle-s`; the last column says which of the two
there are. A list of texts is written with commas there. An empty variable counts as not set;
secrets are no flags, since `ps` shows those.

`--check` reads all that, and the certificates and resources that it names, and ends: 0 without
findings, 1 with them, each as `file:line:col: code: message` with what to do about it; `--json`
prints them for machines. A process whose settings have findings does not start. Each process logs
its settings once when it starts, secrets masked; the coordinator shows them at `/debug/config`.
"""

CLI = """\
# Command line

Written by `make docs` from `--help`.

Exit codes: 0 clean, 1 findings or a refusal, 2 usage, 3 could not run or could not reach. `get`
and `route` ask the coordinator's admin listener: `--admin`, else `LINESIDE_ADMIN`, else
`http://127.0.0.1:9090`. Where that asks for a token, `LINESIDE_ADMIN_TOKEN` gives it. `up` and
`demo` pass no `LINESIDE_` variable on to the processes that they start.
"""


def settings_page() -> str:
    """Return docs/settings.md."""
    parts = [SETTINGS]
    for title, kind, below in (
        ("Coordinator", Config, (("engines", EngineSpec), ("gateways.allowed", Gateway))),
        ("Agent", AgentConfig, ()),
    ):
        parts.append(f"## {title}\n\n{_table(kind)}")
        for name, entry in below:
            parts.append(f"### Entries of `{name}`\n\n{_table(entry, overridable=False)}")
    return "\n".join(parts)


def _table(kind: type[msgspec.Struct], overridable: bool = True) -> str:
    meanings = dict(_meanings(kind))
    head = ["setting", "type", "default", "unit", "meaning"] + ["also"] * overridable
    rows = [head, ["---"] * len(head)]
    for setting in settings_of(kind):
        row = [
            f"`{setting.name}`",
            describe(setting.type),
            "required" if setting.required else f"`{_yaml(setting.default)}`",
            _unit(setting.path[-1]),
            meanings[setting.name],
        ]
        rows.append(row + [_also(setting)] * overridable)
    return "".join(_row(row) for row in rows)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _yaml(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    return msgspec.json.encode(value).decode()


def _unit(name: str) -> str:
    """Return the unit that ends a setting's name."""
    units = {"_per_s": "tokens a second", "_s": "seconds", "_bytes": "bytes"}
    return next((unit for end, unit in units.items() if name.endswith(end)), "")


def _also(setting: Setting) -> str:
    return ", ".join(
        name for name, there in (("variable", setting.variable), ("flag", setting.flag)) if there
    )


def _meanings(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting with the string below its field."""
    for name, meaning in field_docs(kind).items():
        yield path + name, meaning
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _meanings(field.type, f"{path}{field.name}.")


def cli_page() -> str:
    """Return docs/cli.md."""
    parts = [CLI]
    for command in parser().walk():
        help = command.format_help_all()
        parts.append(f"## `{command.prog}`\n\n```\n{help}```\n")
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Described:
    """One metric, as it is exposed."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def operations_page(page: str) -> str:
    """Return docs/operations.md with its table of metrics as the code has it."""
    before, _, rest = page.partition(METRICS_BEGIN)
    _, _, after = rest.partition(METRICS_END)
    tables = "".join(
        f"\n{title}\n\n" + "".join(_row(row) for row in _metric_rows(metrics))
        for title, metrics in asyncio.run(metrics_of_processes()).items()
    )
    return f"{before}{METRICS_BEGIN}\n{tables}\n{METRICS_END}{after}"


def _metric_rows(metrics: list[Described]) -> Iterator[list[str]]:
    yield ["metric", "type", "labels", "meaning"]
    yield ["---"] * 4
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield [f"`{metric.name}`", metric.kind, labels, metric.meaning.removesuffix(".")]


async def metrics_of_processes() -> dict[str, list[Described]]:
    """Return what each process exposes of its own, built as the process builds it."""
    async with AsyncExitStack() as stack:
        parts = await build(Config(transport="plaintext"), stack)
        ours = _described(parts.admin._registry)
    registry = CollectorRegistry()
    async with asyncio.TaskGroup() as tasks:
        node = Node(
            tasks=tasks,
            clock=SystemClock(),
            session=None,  # type: ignore[arg-type]
            subscribe=None,  # type: ignore[arg-type]
            read_gpus=NodeGpus,
        )
        AgentMetrics(registry, node, dict, tuple, SystemClock())
        agents = _described(registry)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    both = [metric for metric in ours if metric in agents]
    return {
        "Both:": both,
        "Coordinator:": [metric for metric in ours if metric not in both],
        "Agent:": [metric for metric in agents if metric not in both],
    }


def _described(registry: CollectorRegistry) -> list[Described]:
    """Return a registry's metrics of ours, sorted. A library's private names know the labels."""
    labels: dict[str, tuple[str, ...]] = {}
    for collector in registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            labels[collector._name] = tuple(collector._labelnames)
        else:
            for each in collector.collect():
                labels[each.name] = tuple(getattr(each, "_labelnames", ()))
    return sorted(
        (
            Described(
                family.name + "_total" * (family.type == "counter"),
                family.type,
                labels[family.name],
                family.documentation,
            )
            for family in registry.collect()
            if family.name.startswith("lineside_")
        ),
        key=lambda metric: metric.name,
    )


def pages() -> dict[Path, str]:
    """Return each generated page as it should be."""
    operations = DOCS / "operations.md"
    return {
        DOCS / "settings.md": settings_page(),
        DOCS / "cli.md": cli_page(),
        operations: operations_page(operations.read_text()),
    }


def main() -> int:
    """Write the pages that differ, and name them."""
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"wrote docs/{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
