"""`lineside sim engine`: one simulated vLLM engine."""

import argparse
import sys

import simulate.config
import simulate.main
from cli.commands import Subcommands
from lineside import logs

COMMON = ("port", "kv_port", "replay_port", "model_name", "model_folder", "seed", "blocks")
"""What `--help` shows; `--help-all` has the engine's speed and its oddities, too."""


def add_to(commands: Subcommands) -> None:
    """Add the command; its options are the simulator's own."""
    sim = commands.add_parser("sim", help="simulated parts, for trying things without a GPU")
    parts = sim.add_subparsers(title="parts", dest="part", required=True)
    engine = parts.add_parser(
        "engine",
        help="a simulated vLLM engine: real wire formats, invented text",
        description="A simulated vLLM engine: real HTTP API, metrics and KV events, invented text.",
        usage="lineside sim engine [options]",
    )
    simulate.config.add_arguments(engine)
    engine.show_only(COMMON)
    engine.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        config = simulate.config.from_arguments(arguments)
    except simulate.config.BadConfig as error:
        print(f"lineside sim engine: {error}", file=sys.stderr)
        return 2
    logs.setup()
    return simulate.main.run(config)
