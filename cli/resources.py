"""What the commands of `lineside policy` share: files to resources, and how findings are told."""

from collections.abc import Sequence
from dataclasses import dataclass

from cli.children import CouldNotRun
from cli.parsing import Parser
from cli.shown import print_json
from lineside.findings import Finding
from policies import files
from policies.cases import Suite, tools_in
from policies.load import Located, load
from policies.model import InferencePolicy, Resource
from policies.state import ClusterState

CLEAN, FINDINGS = 0, 1


@dataclass(frozen=True, slots=True)
class Given:
    """What files hold, and all that is wrong with how it is written."""

    located: tuple[Located, ...]
    states: tuple[ClusterState, ...]
    suites: tuple[Suite, ...]
    findings: tuple[Finding, ...]

    @property
    def resources(self) -> list[Resource]:
        """Return the resources of all kinds."""
        return [each.resource for each in self.located]

    @property
    def policies(self) -> list[InferencePolicy]:
        """Return the policies."""
        return [each for each in self.resources if isinstance(each, InferencePolicy)]


def add_files(command: Parser, what: str) -> None:
    """Add the words that name files, and `--json`."""
    command.add_argument("files", nargs="+", metavar="FILES", help=what)
    command.add_argument("--json", action="store_true", help="print JSON")


def given(names: Sequence[str]) -> Given:
    """Read files and folders. Raises `CouldNotRun` where one cannot be read."""
    try:
        documents = list(files.read(files.find(names)))
    except files.Unreadable as error:
        raise CouldNotRun(str(error)) from None
    loaded, tools = load(documents), tools_in(documents)
    return Given(
        loaded.resources,
        tuple(state for _, state in tools.states),
        tuple(tools.suites),
        in_order((*loaded.findings, *tools.findings)),
    )


def one(name: str) -> tuple[str, bytes]:
    """Return one file's name and bytes. Raises `CouldNotRun`."""
    try:
        return next(files.read([name]))
    except files.Unreadable as error:
        raise CouldNotRun(str(error)) from None


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings of several readers: by file as they were given, then by line."""
    sources = {each.place.source: None for each in findings}
    number = {source: at for at, source in enumerate(sources)}
    return tuple(
        sorted(
            findings,
            key=lambda f: (number[f.place.source], f.place.line or 0, f.place.col or 0),
        )
    )


def tell(findings: Sequence[Finding], as_json: bool) -> int:
    """Print findings that end a command, and return its exit code."""
    if as_json:
        print_json({"findings": [each.to_json() for each in findings]})
    else:
        for each in findings:
            print(each)
    return FINDINGS
