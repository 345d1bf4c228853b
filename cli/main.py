"""The `lineside` command: parses, dispatches, turns outcomes into exit codes. Holds no logic.

Exit codes: 0 clean, 1 findings or refusal, 2 usage, 3 could not run.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from cli import certs, demo, doctor, get, policy, processes, replay, rollout, route, sim, store, up
from cli.admin import Refused
from cli.children import CouldNotRun
from cli.parsing import Parser
from lineside import core_log

DESCRIPTION = """\
Lineside routes each request to the vLLM engine that already holds its prompt."""

EPILOG = """\
Exit codes: 0 clean, 1 findings or refusal, 2 usage, 3 could not run."""


def parser() -> Parser:
    """Return the whole command line."""
    top = Parser(prog="lineside", description=DESCRIPTION, epilog=EPILOG, add_help=False)
    top.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)  # it fits a screen so
    top.add_argument("--version", action="version", version=f"lineside {processes.version()}")
    commands = top.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    modules = (demo, up, doctor, get, route, policy, rollout, replay, store, certs, processes, sim)
    for module in modules:
        module.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `argv` `None`: it is what the process is for."""
    arguments = parser().parse_args(argv)
    if argv is None and getattr(arguments, "speaks_grpc", False):
        core_log.silence()
    try:
        code: int = arguments.run(arguments)
    except (CouldNotRun, Refused) as error:
        print(f"lineside: {error}", file=sys.stderr)
        if error.help:
            print(f"  help: {error.help}", file=sys.stderr)
        return 1 if isinstance(error, Refused) else 3
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain again while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
