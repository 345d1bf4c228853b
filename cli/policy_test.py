"""`lineside policy test`: cases with what is expected, and where policies say otherwise."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.commands import Subcommands
from cli.resources import CLEAN, FINDINGS, Given, add_files, given, in_order, tell
from cli.shown import print_json
from lineside.findings import Finding, Place
from policies.cases import Suite
from policies.judge import Judged, judge, strangers
from policies.model import Resource
from policies.state import ClusterState

DESCRIPTION = """\
Run the PolicyTest cases among FILES (docs/policies.md): each is a request, a
state of the cluster, and the model, backend or refusal that is to come of it.

A PolicyTest that names `files` is run on those, others on the rest of FILES.

Exit codes: 0 all pass, 1 a case fails or a file has findings, 2 usage,
3 could not run."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One case, where it is written, and what came of it."""

    place: Place
    judged: Judged


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "test", help="run cases: requests with what is expected", description=DESCRIPTION
    )
    add_files(command, "cases, policies and other resources")
    command.add_argument("-v", "--verbose", action="store_true", help="name cases that pass, too")
    command.set_defaults(run=_test)


def _test(arguments: argparse.Namespace) -> int:
    said = given(arguments.files)
    ran, findings = run(said)
    if findings:
        return tell(findings, arguments.json)
    failed = [each for each in ran if each.judged.differences]
    if arguments.json:
        print_json({"cases": [_json(each) for each in ran], "failed": len(failed)})
    else:
        for each in ran:
            for line in _told(each, arguments.verbose):
                print(line)
        print(f"{len(ran)} case{'s' * (len(ran) != 1)}: {len(failed) or 'none'} failed")
    return FINDINGS if failed else CLEAN


def run(said: Given) -> tuple[list[Ran], list[Finding]]:
    """Run all cases; nothing is run where something is wrong with how they are written."""
    findings = [*said.findings]
    if not said.suites and not findings:
        message = "there is no PolicyTest among the files"
        findings.append(Finding(Place("FILES"), "no-cases", message))
    ran: list[Ran] = []
    for suite in said.suites:
        beside = _beside(suite, said)
        findings += [each for each in beside.findings if each not in findings]
        state = suite.test.state or next(iter(beside.states), ClusterState())
        if suite.test.state is None and len(beside.states) > 1:
            message = "there is more than one ClusterState"
            findings.append(Finding(Place(suite.source, 1, 1), "two-states", message))
        wrong = list(_strangers(suite, state))
        findings += wrong
        if not beside.findings and not wrong:
            ran += _ran(suite, beside.resources, state)
    return ([], list(in_order(findings))) if findings else (ran, [])


def _beside(suite: Suite, said: Given) -> Given:
    """Return what a test's cases are run on."""
    if not suite.test.files:
        return said
    folder = Path(suite.source).parent
    return given([str(folder / name) for name in suite.test.files])


def _strangers(suite: Suite, state: ClusterState) -> Iterator[Finding]:
    for number, case in enumerate(suite.test.cases):
        for name in strangers(case, state):
            place = suite.places["cases", number, "changes", name]
            message = f"`{name}` is no engine or provider of the state"
            yield Finding(place, "unknown-backend", message)


def _ran(suite: Suite, resources: Sequence[Resource], state: ClusterState) -> Iterator[Ran]:
    for number, case in enumerate(suite.test.cases):
        yield Ran(suite.place(number), judge(resources, state, case))


def _told(ran: Ran, verbose: bool) -> Iterator[str]:
    note = ran.judged.case.note
    if not ran.judged.differences:
        if verbose:
            yield f"{ran.place}: ok: {note}"
        return
    yield f"{ran.place}: failed: {note}"
    for each in ran.judged.differences:
        yield f"  {each}"
    source = ran.judged.trial.verdict.source
    yield f"  decided by: {source}"


def _json(ran: Ran) -> dict[str, object]:
    return {
        "file": ran.place.source,
        "line": ran.place.line,
        "note": ran.judged.case.note,
        "passed": not ran.judged.differences,
        "differences": [
            {"field": each.field, "expected": each.expected, "got": each.got}
            for each in ran.judged.differences
        ],
        "got": ran.judged.trial.to_json(),
    }
