"""What every subcommand module shares: the type of the place that it adds itself to."""

import argparse
from typing import TYPE_CHECKING, TypeAlias

from cli.parsing import Parser

if TYPE_CHECKING:
    Subcommands: TypeAlias = argparse._SubParsersAction[Parser]
else:  # generic at type-checking time only
    Subcommands = argparse._SubParsersAction
