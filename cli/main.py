"""The `lineside` command: parses, dispatches, turns outcomes into exit codes. Holds no logic.

Exit codes: 0 clean, 1 findings or refusal, 2 usage, 3 could not run.
"""

import argparse
import sys
from collections.abc import Sequence

from cli import demo, processes, sim, up
from cli.children import CouldNotRun

DESCRIPTION = """\
Lineside routes each request to the vLLM engine that already holds its prompt."""

EPILOG = """\
examples:
  lineside demo
  lineside up --engine http://127.0.0.1:8000 --engine http://127.0.0.1:8001
  lineside sim engine --port 8000"""


def parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    top = argparse.ArgumentParser(
        prog="lineside",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"lineside {processes.version()}")
    commands = top.add_subparsers(title="commands", dest="command", required=True)
    up.add_to(commands)
    demo.add_to(commands)
    sim.add_to(commands)
    processes.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except CouldNotRun as error:
        print(f"lineside: {error}", file=sys.stderr)
        if error.help:
            print(f"  help: {error.help}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
