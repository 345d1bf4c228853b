"""`lineside apply` and `lineside rollout`: resources into the store, and back to earlier ones."""

import argparse
import asyncio
import getpass
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli.admin import Refused
from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.policy_lint import linted
from cli.resources import FINDINGS, given, tell
from cli.shown import console, moment, number, print_json, table, text
from cli.store import AWAY_HELP, add_store, told
from coordinator.state import applied
from coordinator.state.applied import Applied, NoSuchSet, Overtaken, TooLarge, Unsure
from coordinator.state.store import Store, StoreUnavailable
from policies import files

APPLY = """\
Check policies, pools, worker sets and providers, and put them into force on
every coordinator that shares the store and has no `resources` of its own.
The set is taken as a whole; with an error in it nothing changes."""

ROLLOUT = """\
See which sets of resources were applied to the store, and go back to one."""


def add_to(commands: Subcommands) -> None:
    """Add both commands."""
    apply = commands.add_parser(
        "apply", help="policies and other resources into the store", description=APPLY
    )
    apply.add_argument(
        "-f", dest="files", action="append", required=True, metavar="DIR", help="file or folder"
    )
    add_store(apply)
    apply.add_argument("--json", action="store_true", help="print one JSON object")
    apply.set_defaults(run=_apply)
    rollout = commands.add_parser(
        "rollout", help="what was applied, and back to an earlier set", description=ROLLOUT
    )
    does = rollout.add_subparsers(title="commands", dest="does", metavar="COMMAND", required=True)
    history = does.add_parser("history", help="the sets that are kept, newest first")
    add_store(history)
    history.add_argument("--json", action="store_true", help="print JSON")
    history.set_defaults(run=lambda arguments: asyncio.run(told(_history, arguments)))
    undo = does.add_parser("undo", help="the set before into force again; again: the one before it")
    add_store(undo)
    undo.add_argument("--to", type=int, metavar="NUMBER", help="this set instead")
    undo.add_argument("--json", action="store_true", help="print one JSON object")
    undo.set_defaults(run=lambda arguments: asyncio.run(told(_undo, arguments)))


def _apply(arguments: argparse.Namespace) -> int:
    said = given(arguments.files)
    findings = linted(said)
    if any(each.severity == "error" for each in findings):
        tell(findings, arguments.json)
        return FINDINGS
    if not arguments.json:
        for finding in findings:
            print(finding)
    return asyncio.run(told(_put, arguments))


async def _put(store: Store, arguments: argparse.Namespace) -> int:
    documents = _documents(arguments.files)
    with _writing("look at it, then apply again if this set is to follow"):
        made, is_new = await applied.apply(store, documents, _who(), time.time())
    if arguments.json:
        print_json({"set": made.number, "new": is_new})
    else:
        word = "is in the store" if is_new else "is there already, and the same"
        console().print(f"set {made.number} {word}: {_files(made)}")
    return 0


@contextmanager
def _writing(help: str) -> Iterator[None]:
    """Say what became of a write that was refused, or to a store that is away."""
    try:
        yield
    except (NoSuchSet, Overtaken, TooLarge) as error:
        raise Refused(str(error), help) from None
    except Unsure as error:
        tells = "it may have been done all the same: `lineside rollout history` tells"
        raise CouldNotRun(f"the store went away in the middle: {error}", tells) from None
    except StoreUnavailable as error:
        said = f"the store is away, and nothing was changed: {error}"
        raise CouldNotRun(said, AWAY_HELP) from None


def _documents(names: list[str]) -> list[tuple[str, str]]:
    """Return files by their names below the current folder, or their own where they are not."""
    try:
        found = list(files.read(files.find(names)))
        return [(_short(name), content.decode()) for name, content in found]
    except files.Unreadable as error:
        raise CouldNotRun(str(error)) from None


def _short(name: str) -> str:
    path = Path(name)
    return path.name if path.is_absolute() else os.path.normpath(name)


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def _files(each: Applied) -> str:
    count = len(each.documents)
    return f"{count} file{'s' * (count != 1)}"


async def _history(store: Store, arguments: argparse.Namespace) -> int:
    sets = await applied.history(store)
    newest_first = sorted(sets.by_number.values(), key=lambda each: -each.number)
    if arguments.json:
        print_json([_shown(each, sets.current) for each in newest_first])
        return 0
    rows = table("set", "applied (UTC)", "by", "files", "", right="set,files")
    for each in newest_first:
        notes = ["in force"] * (each.number == sets.current)
        notes += [f"as set {each.undoes_to}"] * (each.undoes_to is not None)
        rows.add_row(
            number(each.number),
            moment(each.at),
            text(each.by),
            number(len(each.documents)),
            ", ".join(notes),
        )
    console().print(rows if newest_first else "nothing was applied yet")
    return 0


def _shown(each: Applied, current: int | None) -> dict[str, Any]:
    return {
        "set": each.number,
        "at": each.at,
        "by": each.by,
        "files": [name for name, _ in each.documents],
        "as_set": each.undoes_to,
        "in_force": each.number == current,
    }


async def _undo(store: Store, arguments: argparse.Namespace) -> int:
    with _writing("`lineside rollout history` lists what is kept"):
        made = await applied.undo(store, arguments.to, _who(), time.time())
    if arguments.json:
        print_json({"set": made.number, "as_set": made.undoes_to})
    else:
        console().print(f"set {made.number} is in force, as set {made.undoes_to} was")
    return 0
