"""`lineside store`: look at the store itself, copy it to a file and back. Asks no coordinator."""

import argparse
import asyncio
import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from cli.admin import Refused
from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.parsing import Parser, store_named
from cli.shown import console, number, print_json, seconds, table, text
from coordinator.config import Config
from coordinator.state import copies
from coordinator.state.copies import BadCopy, Conflict
from coordinator.state.settings import EtcdAccess
from coordinator.state.store import (
    PROBE,
    SECRET_KEY,
    Delete,
    LeaseLost,
    Put,
    Store,
    StoreUnavailable,
)
from coordinator.state.stores.opening import store_of
from lineside.settings import read

T = TypeVar("T")

AWAY_HELP = "its address, its certificates and `etcd.*` are the usual suspects"

PROBE_TTL_S = 10
HEARD_S = 5.0

UNSOUND = ("etcd 3.5.0", "etcd 3.5.1", "etcd 3.5.2")
"""They can lose what they applied when they are killed, as churn has shown (decision 011)."""

DESCRIPTION = """\
Look at what coordinators share, without one of them. --config is that of a
coordinator, for its `store` and `etcd`; --store names one that needs no more.

A copy holds the cluster's secret: keep it as you keep keys."""


def add_to(commands: Subcommands) -> None:
    """Add the command and what it does."""
    store = commands.add_parser(
        "store", help="check, copy and fill the store", description=DESCRIPTION
    )
    does = store.add_subparsers(title="commands", dest="does", metavar="COMMAND", required=True)
    check = does.add_parser(
        "check",
        help="whether it can be read, written and watched, and what is in it",
        description="""\
Say whether the store can be read, written, leased and watched, by trying
each on a key that is gone afterwards; then how much of what is in it.
Exit codes: 0 all of it works, 1 something does not, 3 it cannot be reached.""",
    )
    add_store(check)
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=lambda arguments: asyncio.run(told(_check, arguments)))
    export = does.add_parser(
        "export",
        help="copy its lasting keys to a file",
        description="Copy all keys but those that go with a process, as lines of JSON.",
    )
    add_store(export)
    export.add_argument("--to", required=True, type=Path, metavar="FILE", help="a new file")
    export.add_argument("--json", action="store_true", help="print one JSON object")
    export.set_defaults(run=lambda arguments: asyncio.run(told(_export, arguments)))
    import_ = does.add_parser(
        "import",
        help="write a copy into it",
        description="Write the keys of a copy. Stop the coordinators first.",
    )
    add_store(import_)
    import_.add_argument("file", type=Path, metavar="FILE", help="what `store export` wrote")
    import_.add_argument(
        "--replace", action="store_true", help="also keys that have another value there"
    )
    import_.add_argument("--json", action="store_true", help="print one JSON object")
    import_.set_defaults(
        must_exist=False, run=lambda arguments: asyncio.run(told(_import, arguments))
    )


def add_store(command: Parser) -> None:
    """Add the options that say which store a command is about."""
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--config", type=Path, metavar="FILE", help="a coordinator's configuration")
    which.add_argument(
        "--store",
        type=store_named,
        metavar="STORE",
        help="sqlite:PATH or etcd:http://HOST:PORT,...",
    )
    command.set_defaults(must_exist=True, speaks_grpc=True)


@asynccontextmanager
async def _opened(arguments: argparse.Namespace) -> AsyncIterator[Store]:
    store = _store(arguments)
    try:
        yield store
    finally:
        await store.close()


def _store(arguments: argparse.Namespace) -> Store:
    if arguments.config is None:
        document = json.dumps({"transport": "plaintext", "store": arguments.store}).encode()
        source = "--store"
    else:
        source = str(arguments.config)
        try:
            document = arguments.config.read_bytes()
        except OSError as error:
            why = (error.strerror or "no reason").lower()
            raise CouldNotRun(f"{source}: cannot be read: {why}") from None
    config = read(Config, document, source, os.environ if arguments.config else {})
    if isinstance(config, list):
        raise Refused(str(config[0]))
    if config.store == "memory":
        raise Refused("the store is `memory`: it is nowhere but in its coordinator")
    kind, _, path = config.store.partition(":")
    if kind == "sqlite" and arguments.must_exist and not Path(path).is_file():
        raise CouldNotRun(f"there is no file `{path}`", "a coordinator makes it at its first start")
    return store_of(config.store, config.etcd if arguments.config else EtcdAccess())


async def told(
    do: Callable[[Store, argparse.Namespace], Awaitable[int]], arguments: argparse.Namespace
) -> int:
    """Do something with the store that was named; return the exit code."""
    try:
        async with _opened(arguments) as store:
            return await do(store, arguments)
    except StoreUnavailable as error:
        raise CouldNotRun(f"the store is away: {error}", AWAY_HELP) from None


async def _check(store: Store, arguments: argparse.Namespace) -> int:
    took = {
        "read": await _timed(store.get(SECRET_KEY)),
        "write": await _timed(store.transact({}, [Put(key := _probe(), b"")])),
        "watch": await _timed(_heard(store, key)),
        "lease": await _timed(_leased(store)),
    }
    listing = await store.range("")
    keys, sizes = Counter[str](), Counter[str]()
    for key, stored in listing.entries.items():
        prefix = key.rpartition("/")[0].split("/")[0]
        keys[prefix] += 1
        sizes[prefix] += len(key) + len(stored.value)
    secret = listing.entries.get(SECRET_KEY)
    said = {
        "software": await store.about(),
        "revision": listing.revision,
        "took_s": took,
        "keys": {each: {"keys": keys[each], "bytes": sizes[each]} for each in sorted(keys)},
        "secret": None if secret is None else hashlib.sha256(secret.value).hexdigest()[:12],
    }
    if arguments.json:
        print_json(said)
    else:
        _print(said)
    return 0 if secret is not None else 1


def _print(said: dict[str, Any]) -> None:
    out = console()
    for name, took_s in said["took_s"].items():
        out.print(f"{name:6} ok, {seconds(took_s)}")
    rows = table("keys below", "keys", "bytes", right="keys,bytes")
    for prefix, found in said["keys"].items():
        rows.add_row(text(prefix), number(found["keys"]), number(found["bytes"]))
    out.print(rows)
    secret = said["secret"]
    out.print(f"{said['software']}, revision {said['revision']}")
    if said["software"] in UNSOUND:
        out.print("such members may come to differ when one is killed: use a later release")
    out.print(f"secret known as {secret}" if secret else "no secret: no coordinator ever started")


def _probe() -> str:
    return PROBE + secrets.token_hex(8)


async def _heard(store: Store, key: str) -> None:
    """Take the probe away, and hear of it."""
    before = await store.revision()
    await store.transact({}, [Delete(key)])
    try:
        async with asyncio.timeout(HEARD_S), aclosing(store.watch(key, before)) as watch:
            await anext(watch)
    except TimeoutError:
        raise StoreUnavailable(f"no watch told of a write within {HEARD_S:.0f} s") from None


async def _leased(store: Store) -> None:
    lease = await store.grant(PROBE_TTL_S)
    try:
        await store.transact({}, [Put(_probe(), b"", lease)])
        await store.keep(lease)
    except LeaseLost:
        raise StoreUnavailable("a lease was lost at once") from None
    finally:
        await store.revoke(lease)


async def _timed(doing: Awaitable[T]) -> float:
    began = time.monotonic()
    await doing
    return time.monotonic() - began


async def _export(store: Store, arguments: argparse.Namespace) -> int:
    copy = await copies.export(store)
    try:
        made = os.open(arguments.to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(made, "wb") as file:
            file.writelines(copy.lines())
    except OSError as error:
        why = (error.strerror or "no reason").lower()
        raise CouldNotRun(f"{arguments.to}: cannot be written: {why}") from None
    said = {"keys": len(copy.values), "revision": copy.revision, "file": str(arguments.to)}
    if arguments.json:
        print_json(said)
    else:
        console().print("{keys} keys of revision {revision} are in {file}".format(**said))
    return 0


async def _import(store: Store, arguments: argparse.Namespace) -> int:
    try:
        with arguments.file.open("rb") as file:
            copy = copies.read(file)
    except OSError as error:
        why = (error.strerror or "no reason").lower()
        raise CouldNotRun(f"{arguments.file}: cannot be read: {why}") from None
    except BadCopy as error:
        raise Refused(f"{arguments.file}: {error}") from None
    try:
        changed = await copies.put_back(store, copy, arguments.replace)
    except Conflict as error:
        help = "--replace writes over them; coordinators must not run meanwhile"
        raise Refused(f"keys have other values there: {error}", help) from None
    if arguments.json:
        print_json({"written": changed, "keys": len(copy.values)})
    else:
        console().print(f"{changed} of {len(copy.values)} keys were written")
    return 0
