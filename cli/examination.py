"""Examines engines and reports on each: asks, probes where that is wanted, and judges.

For `lineside doctor`, and for what `lineside up` says at its start.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec
from rich.console import Group
from rich.text import Text

from cli import asking
from cli.asking import Rank, Seen
from cli.checks import Check, Level, checks, unreached
from cli.probe import Probed, probe
from cli.shown import printable
from coordinator.config import EngineSpec
from coordinator.publisher import Listener
from coordinator.servers import Away

EVERY: tuple[Level, ...] = ("ok", "note", "warning", "problem")
WRONG: tuple[Level, ...] = ("warning", "problem")


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to say of one server, or of one part of a cluster."""

    name: str
    """A server's URL; else what people call the part."""
    reached: bool | None
    """`None`: it is nothing that answers."""
    checks: list[Check]
    is_part: bool = False

    @property
    def problems(self) -> list[Check]:
        """What keeps something from working."""
        return [check for check in self.checks if check.level == "problem"]

    def to_json(self) -> dict[str, Any]:
        """Return the report for machines."""
        return {
            "part" if self.is_part else "url": self.name,
            **({} if self.reached is None else {"reached": self.reached}),
            "problems": len(self.problems),
            "checks": [check.to_json() for check in self.checks],
        }


async def examine(
    engines: Sequence[Mapping[str, Any]], *, with_probe: bool = False
) -> list[Report]:
    """Look at servers, all at once."""
    specs = [msgspec.convert(engine, EngineSpec) for engine in engines]
    return await asyncio.gather(*(_report(spec, with_probe) for spec in specs))


async def _report(spec: EngineSpec, with_probe: bool) -> Report:
    session, credentials = asking.session(spec)
    async with session:
        seen = await asking.look(session, credentials, spec)
        if isinstance(seen, Away):
            return Report(spec.url, False, [unreached(seen.reason)])
        probed = [await _probed(session, seen, rank) for rank in seen.ranks] if with_probe else None
        return Report(spec.url, True, checks(seen, probed))


async def _probed(session: aiohttp.ClientSession, seen: Seen, rank: Rank) -> Probed:
    """Probe an engine; where nobody publishes at a guessed address there is nothing to hear."""
    engine = rank.engine
    if seen.guessed and rank.listener is not Listener.PUBLISHER:
        engine = replace(engine, events="")
    return await probe(session, engine, rank.load.block_size if rank.load else None)


def shown(reports: Sequence[Report], levels: Sequence[Level] = EVERY) -> Group:
    """Return the reports for people; of `levels` alone, without the servers that have none."""
    lines: list[Text] = []
    for report in reports:
        wanted = [check for check in report.checks if check.level in levels]
        if wanted:
            lines += [Text()] if lines else []
            lines.append(Text(report.name, style="bold"))
        for check in wanted:
            lines += _lines(check)
    return Group(*lines)


_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "problem": "bold red"}


def _lines(check: Check) -> list[Text]:
    level = f"{check.level:<8}", _STYLES[check.level]
    said = Text.assemble("  ", level, f" {printable(check.message)}")
    help = Text(f"           help: {printable(check.help)}", style="dim")
    return [said, help] if check.help else [said]
