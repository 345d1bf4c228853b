"""`lineside policy rollback`: the set before this one into force again, on a live coordinator."""

import argparse
import asyncio

from cli import admin
from cli.commands import Subcommands
from cli.shown import console, print_json

DESCRIPTION = """\
Put the set of policies, pools and providers into force that was there before
the present one. Again: the one before that. It stays until files change or the
coordinator restarts: then what they say counts, so mend them as well.

Exit codes: 0 done, 1 there is none before, 2 usage, 3 could not reach."""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "rollback", help="put the set before into force, live", description=DESCRIPTION
    )
    admin.add_options(command)
    command.set_defaults(run=_rollback)


def _rollback(arguments: argparse.Namespace) -> int:
    asked = admin.ask(admin.listener(arguments), "/debug/policies/rollback", dict, body=b"{}")
    shown = asyncio.run(asked)
    if arguments.json:
        print_json(shown)
        return 0
    names = [policy["name"] for policy in shown["policies"]] or ["no policies"]
    console().print(f"revision {shown['revision']} is in force: {', '.join(names)}")
    return 0
