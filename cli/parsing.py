"""How the command line is read: help of one screen, errors of one line with the nearest word."""

import argparse
import itertools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from lineside.documents import LISTED
from lineside.findings import did_you_mean

WIDTH = 80
"""Help looks the same everywhere: docs/cli.md holds it."""

NEAR = 0.65
"""How near a word must be to be meant: `usage` is not meant for `agent`."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """The usual help, a little tighter."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)

    def add_argument(self, action: argparse.Action) -> None:
        """Note an argument's width, for commands with the two columns that indent them."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            names = [len(name) for name in action.choices]
            self._action_max_length = max(self._action_max_length, *names, 0) + 2

    def _format_action(self, action: argparse.Action) -> str:
        """Leave out the line that says `COMMAND` above the commands."""
        said = super()._format_action(action)
        is_list = isinstance(action, argparse._SubParsersAction)
        return said.partition("\n")[2] if is_list else said


class Parser(argparse.ArgumentParser):
    """A command. Options are never abbreviated: a new one would change what a script means."""

    def __init__(self, **options: Any) -> None:
        self._mine: list[argparse.Action] = []
        self._rare: dict[argparse.Action, str | None] = {}
        self._commands: Mapping[str, Parser] = {}
        super().__init__(**{"allow_abbrev": False, "formatter_class": Formatter, **options})

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an option or a word."""
        action = super().add_argument(*names, **options)
        self._mine.append(action)
        return action

    def add_subparsers(self, **options: Any) -> Any:
        """Make room for commands below this one."""
        below = super().add_subparsers(**options)
        self._commands = below.choices
        return below

    def walk(self) -> Iterator["Parser"]:
        """Yield this command and all below it, as the help lists them."""
        yield self
        for command in self._commands.values():
            yield from command.walk()

    def show_only(self, common: Collection[str]) -> None:
        """Keep all but these and `--help` for `--help-all`."""
        for action in self._mine:
            if action.dest not in (*common, "help"):
                self._rare[action] = action.help
                action.help = argparse.SUPPRESS
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option and exit")

    def format_help_all(self) -> str:
        """Return the help with every option."""
        for action, help in self._rare.items():
            action.help = help
        return self.format_help()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; what is not known is this command's error, not its parent's."""
        words = list(sys.argv[1:] if args is None else args)
        if not self._commands and not {"-h", "--help", "--help-all"} & {*words}:
            # Before what is missing: a misspelt option is both, and its name is what helps.
            self._refuse_unknown(words)
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            if word.startswith("-"):
                self._refuse(word)
            self.error(f"`{word}` is one word too many")
        return found, unknown

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        """Name the first word that looks like an option and is none."""
        for each in itertools.takewhile(lambda word: word != "--", words):
            word = each.partition("=")[0]
            if (
                word.startswith("--")
                and " " not in word
                and word not in self._option_string_actions
            ):
                self._refuse(word)

    def _refuse(self, option: str) -> NoReturn:
        known = list(self._option_string_actions)
        self.error(_hinted(f"there is no option `{option}`", option, known))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest where a command or a choice is unknown."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            if isinstance(action, argparse._SubParsersAction):
                self.error(_hinted(f"there is no command `{value}`", str(value), known))
            name, listed = "/".join(action.option_strings) or action.dest, ", ".join(known)
            hint = f"{did_you_mean(str(value), known)} " if did_you_mean(str(value), known) else ""
            self.error(f"{name} cannot be `{value}`; {hint}it is one of {listed}")

    def error(self, message: str) -> NoReturn:
        """Print the usage and one line; exit with 2."""
        usage = " ".join(self.format_usage().split())
        if self._commands and message.startswith("the following arguments are required"):
            message = _hinted(message, "", list(self._commands))
        self.exit(2, f"{usage}\n{self.prog}: {message}\n")


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.format_help_all())
        parser.exit()


def _hinted(message: str, word: str, known: Collection[str]) -> str:
    listed = ", ".join(f"`{each}`" for each in known)
    known_few = f"there are {listed}" if len(known) <= LISTED else "see --help"
    return f"{message}; {did_you_mean(word, known, NEAR) or known_few}"


def store_named(text: str) -> str:
    """Read what names a store. Raises `argparse.ArgumentTypeError`."""
    if (text != "memory" and not text.startswith(("sqlite:", "etcd:http"))) or text == "sqlite:":
        known = "write memory, sqlite:PATH or etcd:http://HOST:PORT,..."
        raise argparse.ArgumentTypeError(f"`{text}` is not a store: {known}")
    return text
