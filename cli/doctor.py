"""`lineside doctor`: what engines or a whole cluster lack for Lineside, and what to do about it."""

import argparse
import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from cli import kube, processes
from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.examination import Report, examine, shown
from cli.shown import console, print_json
from cli.up import add_engine_option

DESCRIPTION = """\
Say what engines or, with --kubernetes, a whole cluster lacks for Lineside,
what still works without it, and what adds it. Only reads, but for --probe.

Exit codes: 0 no problems, 1 problems, 2 usage, 3 something does not answer."""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "doctor",
        help="what engines or a cluster lack for Lineside, and what adds it",
        description=DESCRIPTION,
        usage="lineside doctor --engine URL[,OPTION=VALUE...] [--engine ...] [options]\n"
        "   or: lineside doctor --kubernetes [options]",
    )
    add_engine_option(command, required=False)
    command.add_argument("--kubernetes", action="store_true", help="look at a cluster")
    command.add_argument("--kubeconfig", metavar="FILE", help="how to reach it")
    command.add_argument("--context", metavar="NAME", help="one of that file's contexts")
    command.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help=f"where Lineside is (default: {kube.NAMESPACE})",
    )
    command.add_argument(
        "--probe",
        action="store_true",
        help="send each engine a short prompt twice, and listen to its events",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=lambda arguments: asyncio.run(_doctor(arguments, command)))


async def _doctor(arguments: argparse.Namespace, command: argparse.ArgumentParser) -> int:
    if arguments.kubernetes == bool(arguments.engine):
        command.error("say one of --engine URL and --kubernetes")
    if not arguments.kubernetes and (
        arguments.kubeconfig or arguments.context or arguments.namespace
    ):
        command.error("--kubeconfig, --context and -n go with --kubernetes")
    if arguments.kubernetes and arguments.probe:
        command.error("--probe goes with --engine")
    if arguments.kubernetes:
        return await _of_cluster(arguments)
    reports = await examine(arguments.engine, with_probe=arguments.probe)
    _print(reports, "engines", arguments.json)
    if not all(report.reached for report in reports):
        return 3
    return _code(reports)


async def _of_cluster(arguments: argparse.Namespace) -> int:
    try:
        reports = await kube.examine(
            arguments.kubeconfig,
            arguments.context,
            arguments.namespace or kube.NAMESPACE,
            processes.version(),
            datetime.now(UTC),
        )
    except kube.Unreachable as error:
        raise CouldNotRun(
            str(error), "--kubeconfig, --context or KUBECONFIG name a cluster"
        ) from None
    _print(reports, "parts", arguments.json)
    return _code(reports)


def _print(reports: Sequence[Report], name: str, as_json: bool) -> None:
    if as_json:
        print_json({name: [report.to_json() for report in reports]})
    else:
        console().print(shown(reports), soft_wrap=True)


def _code(reports: Sequence[Report]) -> int:
    return 1 if any(report.problems for report in reports) else 0
