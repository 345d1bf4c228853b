"""`lineside doctor`: what an engine lacks for Lineside, in words, with the flag that adds it."""

import argparse
import asyncio
import json
import sys

from cli.commands import Subcommands
from cli.examination import examine, shown
from cli.shown import console
from cli.up import add_engine_option

DESCRIPTION = """\
Look at engines and say what each lacks for Lineside, what still works without
it, and the flag of `vllm serve` that adds it. An engine is written as for `up`.
Only reads, unless --probe is given.

Exit codes: 0 no problems, 1 problems, 2 usage, 3 an engine does not answer."""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "doctor",
        help="what an engine lacks for Lineside, and the flag that adds it",
        description=DESCRIPTION,
        usage="lineside doctor --engine URL[,OPTION=VALUE...] [--engine ...] [options]",
    )
    add_engine_option(command)
    command.add_argument(
        "--probe",
        action="store_true",
        help="send each engine a short prompt twice, and listen to its events",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=lambda arguments: asyncio.run(_doctor(arguments)))


async def _doctor(arguments: argparse.Namespace) -> int:
    reports = await examine(arguments.engine, with_probe=arguments.probe)
    if arguments.json:
        sys.stdout.write(json.dumps({"engines": [report.to_json() for report in reports]}) + "\n")
    else:
        console().print(shown(reports), soft_wrap=True)
    if not all(report.reached for report in reports):
        return 3
    return 1 if any(report.problems for report in reports) else 0
