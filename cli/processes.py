"""`lineside agent` and `lineside coordinator`: one process each, from one configuration file."""

from importlib import metadata

import agent.main
import coordinator.main
from agent.config import AgentConfig
from cli.commands import Subcommands
from coordinator.config import Config
from lineside import launch


def version() -> str:
    """Return the installed release."""
    return metadata.version("lineside")


def add_to(commands: Subcommands) -> None:
    """Add both commands."""
    for name, kind, start, text in (
        (
            "coordinator",
            Config,
            coordinator.main.start,
            "index, decisions and doors; one or more per cluster",
        ),
        ("agent", AgentConfig, agent.main.start, "reads the engines and GPUs of one node"),
    ):
        command = commands.add_parser(
            name,
            help=text,
            description=f"The {name}: {text}.",
            usage=f"lineside {name} --config FILE [--check [--json]] [--SETTING VALUE]",
        )
        launch.add_arguments(command, kind)
        command.set_defaults(run=start)
