"""`lineside policy`: policies in files, without a cluster. Dispatches; holds no logic."""

import argparse
import json
import sys

from cli import policy_diff, policy_explain, policy_lint, policy_prove, policy_rollback, policy_test
from cli.commands import Subcommands
from cli.shown import print_json
from policies.schema import json_schema

DESCRIPTION = """\
Check, prove, explain and test policies before they are live. Works offline.

FILES are YAML or JSON; a folder stands for all of them below it, `-` for
standard input. Pools, providers and worker sets among them are the cluster that
names are looked up in; without any, policies may name what they do not define."""


def add_to(commands: Subcommands) -> None:
    """Add the command and all below it."""
    policy = commands.add_parser(
        "policy",
        help="check, prove, explain and test policies offline",
        description=DESCRIPTION,
    )
    below = policy.add_subparsers(title="commands", dest="what", metavar="COMMAND", required=True)
    for module in (
        *(policy_lint, policy_prove, policy_explain, policy_test, policy_diff),
        policy_rollback,
    ):
        module.add_to(below)
    schema = below.add_parser(
        "schema",
        help="the JSON Schema of all kinds, for editors",
        description="Print the JSON Schema of policies and the other kinds, for editors.",
    )
    schema.add_argument("--json", action="store_true", help="on one line")
    schema.set_defaults(run=_schema)


def _schema(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(json_schema())
    else:
        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
    return 0
