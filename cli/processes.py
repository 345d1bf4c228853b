"""`lineside agent` and `lineside coordinator`: one process each, from one configuration file."""

from importlib import metadata

import agent.main
import coordinator.main
from cli.commands import Subcommands


def version() -> str:
    """Return the installed release."""
    return metadata.version("lineside")


def add_to(commands: Subcommands) -> None:
    """Add both commands."""
    for name, text, entry in (
        (
            "coordinator",
            "index, decisions and doors; one or more per cluster",
            coordinator.main.main,
        ),
        ("agent", "reads the engines and GPUs of one node", agent.main.main),
    ):
        command = commands.add_parser(name, help=text, description=f"The {name}: {text}.")
        command.add_argument(
            "--config",
            required=True,
            metavar="FILE",
            help="YAML or JSON; `-` reads standard input",
        )
        command.set_defaults(run=lambda a, entry=entry: entry(["--config", a.config]))
