"""What agent and coordinator do before they run: their options, their settings, the findings.

Reads the configuration file or standard input; starts nothing.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from lineside import certificates
from lineside.findings import Finding
from lineside.schema import settings_of
from lineside.settings import read

T = TypeVar("T", bound=msgspec.Struct)

CLEAN, FINDINGS, COULD_NOT_RUN = 0, 1, 3


def add_arguments(parser: argparse.ArgumentParser, kind: type[msgspec.Struct]) -> None:
    """Add the options of a process, and one for each setting that a flag can override.

    Those of settings are left out of the help: it has to fit a screen, and docs/settings.md has
    them.
    """
    parser.add_argument(
        "--config", metavar="FILE", required=True, help="YAML or JSON; `-` reads standard input"
    )
    parser.add_argument(
        "--check", action="store_true", help="check settings and certificates, and end"
    )
    parser.add_argument("--json", action="store_true", help="with --check: print findings as JSON")
    for setting in settings_of(kind):
        if setting.flag is not None:
            parser.add_argument(
                setting.flag, dest=setting.flag, metavar="VALUE", help=argparse.SUPPRESS
            )
    parser.epilog = (
        "Each setting is a flag, too (--log-level debug), and a variable\n"
        "(LINESIDE_LOG_LEVEL); flags win over variables, variables over the file.\n"
        "docs/settings.md lists them. Secrets are no flags.\n\n"
        "Exit codes: 0 clean, 1 findings, 2 usage, 3 could not run."
    )


def configured(
    kind: type[T],
    arguments: argparse.Namespace,
    environ: Mapping[str, str],
    unfit: Callable[[T], Sequence[Finding]] = lambda _: (),
) -> T | int:
    """Return the settings to run with, or the exit code of a process that is not to run.

    `unfit` finds what is wrong with other files that they name. Certificates are looked at where
    settings are only checked: a process that runs says itself which it cannot use.
    """
    name: str = arguments.config
    source = "stdin" if name == "-" else name
    try:
        document = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        sys.stderr.write(f"{source}: cannot be read: {(error.strerror or 'no reason').lower()}\n")
        return COULD_NOT_RUN
    said = vars(arguments).items()
    flags = {name: text for name, text in said if name.startswith("--") and text is not None}
    judge = certificates.unusable if arguments.check else None
    outcome = read(kind, document, source, environ, flags, judge)
    findings = outcome if isinstance(outcome, list) else unfit(outcome)
    if arguments.check and arguments.json:
        sys.stdout.write(json.dumps({"findings": [each.to_json() for each in findings]}) + "\n")
    elif findings:
        sys.stderr.write(_told(findings))
    elif arguments.check:
        sys.stdout.write(f"{source}: no findings\n")
    if isinstance(outcome, list) or findings:
        return FINDINGS
    return CLEAN if arguments.check else outcome


def _told(findings: Sequence[Finding]) -> str:
    return "".join(f"{each}\n" for each in findings)
