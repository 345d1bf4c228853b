"""`lineside policy lint`: all that is wrong with policies, or looks as if it were."""

import argparse

from cli.commands import Subcommands
from cli.resources import CLEAN, FINDINGS, Given, add_files, given, in_order
from cli.shown import print_json
from lineside.findings import Finding
from policies.lint import lint
from policies.state import offline_inventory

DESCRIPTION = """\
Report all that is wrong with policies, each with file, line and column, and
run the proofs that they ask for (annotation `lineside.dev/prove`).

Exit codes: 0 clean or warnings only, 1 errors (with --strict also warnings),
2 usage, 3 could not run."""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "lint", help="report all that is wrong with policies", description=DESCRIPTION
    )
    add_files(command, "policies and other resources")
    command.add_argument("--strict", action="store_true", help="warnings exit with 1, too")
    command.set_defaults(run=_lint)


def _lint(arguments: argparse.Namespace) -> int:
    said = given(arguments.files)
    findings = linted(said)
    if arguments.json:
        print_json({"findings": [each.to_json() for each in findings]})
    else:
        for each in findings:
            print(each)
        print(_summary(said, findings))
    wrong = [each for each in findings if arguments.strict or each.severity == "error"]
    return FINDINGS if wrong else CLEAN


def linted(said: Given) -> tuple[Finding, ...]:
    """Return all findings, in the order of the files."""
    inventory = offline_inventory(said.resources)
    return in_order((*said.findings, *lint(said.located, inventory)))


def _summary(said: Given, findings: tuple[Finding, ...]) -> str:
    count = len(said.located)
    of = f"{count} resource{'s' * (count != 1)}"
    if not findings:
        return f"{of}: no findings"
    errors = sum(each.severity == "error" for each in findings)
    warnings = len(findings) - errors
    return f"{of}: {errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
