"""`lineside up`: everything for the engines on this machine, until Ctrl-C.

A part that dies is started again; one that keeps dying ends the command.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from rich.table import Table

from cli import admin
from cli.children import first_failure, keep
from cli.commands import Subcommands
from cli.examination import WRONG, Report, examine, shown
from cli.parsing import Parser, store_named
from cli.shown import Out
from cli.stack import Stack, running
from coordinator.resources import unfit
from coordinator.tokens import hub

FIRST_LOOK_S = 10.0
"""How long to wait for the engines before saying what is there."""

ENGINE_KEYS = ("kv", "replay", "tokenizer", "rank", "topic", "api_key_file", "gpus")

DESCRIPTION = """\
Run a coordinator, its gateway and an agent for engines, until Ctrl-C.
An engine is http://HOST:PORT, with options behind commas:
  kv=tcp://HOST:PORT      its KV events (else asked of it, else port 5557)
  replay=tcp://HOST:PORT  its replay socket (else asked of it, else port 5558)
  tokenizer=DIR           has tokenizer.json; or ORG/NAME at a model hub
  rank=N, topic=TEXT      only this data-parallel rank, this topic prefix
  api_key_file=FILE       the key that it was started with (--api-key)
  gpus=GPU-UUID+GPU-UUID  what it runs on, as `nvidia-smi -L` prints them"""


class BadEngine(ValueError):
    """An `--engine` that cannot be read; says why."""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "up",
        help="a coordinator and an agent before engines on this machine",
        description=DESCRIPTION,
        usage="lineside up --engine URL[,OPTION=VALUE...] [--engine ...] [options]",
    )
    add_engine_option(command)
    _add_listeners(command)
    command.add_argument(
        "--store",
        default="memory",
        type=store_named,
        metavar="sqlite:PATH",
        help="keep state over restarts (or etcd:URL; default: memory)",
    )
    _add_settings(command)
    command.add_argument(
        "--logs", type=Path, metavar="DIR", help="write full logs there, a file a process"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object once it runs")
    command.set_defaults(run=lambda arguments: asyncio.run(_up(arguments)))


def _add_listeners(command: Parser) -> None:
    for name, port, text in (
        ("http", 8080, "OpenAI gateway"),
        ("grpc", 9002, "routing queries"),
        ("admin", 9090, "health, metrics, debug"),
    ):
        command.add_argument(
            f"--{name}",
            default=f"127.0.0.1:{port}",
            type=_address,
            metavar="ADDRESS",
            help=f"listen here: {text} (default :{port})",
        )


def _add_settings(command: Parser) -> None:
    command.add_argument(
        "--resources",
        type=Path,
        metavar="DIR",
        help="policies, pools and providers, watched for changes",
    )
    command.add_argument(
        "--tags",
        default="",
        metavar="NAME=STATE,...",
        help="tags of every request: present, absent, unknown",
    )
    command.add_argument(
        "--tags-header", metavar="NAME", help="header of a trusted gateway that lists them"
    )
    command.add_argument(
        "--prefill-rate",
        type=_positive,
        metavar="TOKENS",
        help="prompt tokens an engine computes in a second",
    )


def add_engine_option(command: Parser, *, required: bool = True) -> None:
    """Add `--engine`, which names the engines that a command is about."""
    command.add_argument(
        "--engine",
        action="append",
        required=required,
        type=_engine,
        metavar="URL[,...]",
        help="an engine; again for each one",
    )


def _engine(text: str) -> dict[str, Any]:
    try:
        return parse_engine(text)
    except BadEngine as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_engine(text: str) -> dict[str, Any]:
    """Read `URL[,key=value…]`. Raises `BadEngine`."""
    url, *options = text.split(",")
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise BadEngine(f"`{url}` has no valid port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadEngine(f"`{url}` is not an address: write http://HOST:PORT")
    if parts.path.rstrip("/") or parts.query:
        raise BadEngine(f"`{url}` has a path: name the server alone, http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    engine: dict[str, Any] = {
        "url": f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"
    }
    for option in options:
        key, equals, value = option.partition("=")
        if key not in ENGINE_KEYS or not equals or not value:
            known = ", ".join(f"`{name}=`" for name in ENGINE_KEYS)
            raise BadEngine(f"`{option}` is not an engine option: there are {known}")
        engine[key] = _option(key, value)
    return engine


def _option(key: str, value: str) -> str | int | list[str]:
    if key == "rank":
        if not value.isdigit():
            raise BadEngine(f"rank `{value}` is not a number from 0")
        return int(value)
    if key == "gpus":
        uuids = value.split("+")
        if wrong := next((each for each in uuids if not each.startswith("GPU-")), None):
            raise BadEngine(f"`{wrong}` is not a GPU's UUID: `nvidia-smi -L` prints them")
        return uuids
    if key == "tokenizer":
        return _tokenizer(value)
    if key in ("kv", "replay") and not value.startswith(("tcp://", "ipc://")):
        raise BadEngine(
            f"`{key}={value}` is not a ZMQ endpoint: write tcp://HOST:PORT or ipc://PATH"
        )
    return value


def _tokenizer(value: str) -> str:
    """Return a folder, or a name at a hub: only what cannot be meant for a folder is one."""
    folder, at_hub = Path(value).expanduser(), "at a model hub it is ORG/NAME or ORG/NAME@REVISION"
    if folder.is_dir():
        if not (folder / "tokenizer.json").is_file():
            raise BadEngine(f"there is no tokenizer.json in `{value}`")
        return str(folder.resolve())
    if folder.is_file():
        raise BadEngine(f"`tokenizer={value}` is a file: name the folder that it is in")
    is_deep = value.partition("@")[0].count("/") > 1
    if value[0] in "/.~\\" or is_deep or value.endswith("/"):
        raise BadEngine(f"there is no folder `{value}`; {at_hub}")
    if not hub.is_name(value):
        raise BadEngine(f"`tokenizer={value}` is no folder here, and no name of a hub: {at_hub}")
    if "@" not in value and folder.parent.is_dir():
        raise BadEngine(
            f"there is a folder `{folder.parent}` here, and no `{folder.name}` in it;"
            f" if a model at a hub is meant, write {value}@main"
        )
    return value


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"`{text}` is not an address: write HOST:PORT or :PORT")
    return f"{host or '127.0.0.1'}:{port}"


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"`{text}` is not a positive number")
    return value


async def _up(arguments: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if arguments.resources and (errors := unfit(arguments.resources)):
        sys.stderr.writelines(f"{finding}\n" for finding in errors)
        return 1
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    async with (
        running(
            arguments.engine,
            http=arguments.http,
            grpc=arguments.grpc,
            admin=arguments.admin,
            store=arguments.store,
            settings=_settings(arguments),
            logs=arguments.logs,
            log_level="info" if arguments.logs else "warning",  # on a terminal, people come first
        ) as stack,
        first_failure(),
        asyncio.TaskGroup() as tasks,
    ):
        parts = [
            *(
                tasks.create_task(keep(each, meanwhile, _say), name=f"keep {each.name}")
                for each, meanwhile in (
                    (stack.coordinator, "until then connections are refused"),
                    (stack.agent, "requests go on by what is known, after 10 s by load alone"),
                )
            ),
            tasks.create_task(_tell(stack, arguments.engine, arguments.json), name="tell"),
        ]
        await stop.wait()
        for part in parts:
            part.cancel()
    return 0


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the coordinator's settings beside its listeners, those that were given."""
    settings: dict[str, Any] = {}
    if arguments.resources:
        settings["resources"] = str(arguments.resources.resolve())
    if arguments.tags:
        settings["tags"] = [tag.strip() for tag in arguments.tags.split(",")]
    if arguments.tags_header:
        settings["tags_header"] = arguments.tags_header
    if arguments.prefill_rate:
        settings["prefill_tokens_per_s"] = arguments.prefill_rate
    return settings


def _say(text: str) -> None:
    """Tell people, beside what goes to standard output."""
    Out(stderr=True, markup=False, highlight=False).print(f"lineside: {text}", soft_wrap=True)


async def _tell(stack: Stack, specs: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Say what is there, and what the engines lack, once they were looked at."""
    async with aiohttp.ClientSession() as session:
        engines, reports = await asyncio.gather(
            stack.wait_fresh(session, len(specs), FIRST_LOOK_S), _examined(specs)
        )
        policies: Mapping[str, Any] = {"policies": ()}
        with suppress(aiohttp.ClientError):  # it died; whoever keeps it says so
            policies = await stack.policies(session)
    if as_json:
        where = stack.listening
        checks = {report.name: report.to_json()["checks"] for report in reports}
        print(json.dumps({"listening": where, "engines": engines, "checks": checks}), flush=True)
        return
    console = Out(markup=False, highlight=False)
    console.print(_table(engines))
    if any(check.level in WRONG for report in reports for check in report.checks):
        console.print("\nwhat to know of the engines, and what to add to their command lines:")
        console.print(shown(reports, WRONG), soft_wrap=True)
    console.print(
        f"\ngateway  {stack.http}/v1\nrouting  {stack.listening['grpc']} (gRPC, plaintext)\n"
        f"admin    {stack.admin}/\n{_policies(policies)}"
        "look     lineside get engines --watch, get decisions, route -f REQUEST.json"
        f"{_named(stack.admin)}\nCtrl-C ends it\n",
        soft_wrap=True,
    )
    if model := next((engine["model"] for engine in engines if engine["model"]), None):
        console.print(
            f"try: curl {stack.http}/v1/chat/completions -H 'content-type: application/json' \\\n"
            f'  -d \'{{"model": "{model}", "max_tokens": 16,'
            ' "messages": [{"role": "user", "content": "Hello"}]}\'',
            soft_wrap=True,
        )
    else:
        console.print(
            "no engine answers yet: start vLLM there, or correct --engine; Lineside keeps looking",
            soft_wrap=True,
        )


def _policies(said: Mapping[str, Any]) -> str:
    """Return a line on the policies in force, where there are any."""
    if not (in_force := len(said["policies"])):
        return ""
    warnings = len(said.get("findings") or ())
    warned = f", {warnings} warning{'s' * (warnings != 1)}" if warnings else ""
    return f"policies {in_force} in force{warned}: lineside get policies\n"


def _named(url: str) -> str:
    """Return the option that names an admin listener, where commands do not look there anyway."""
    return "" if url == admin.DEFAULT else f" --admin {url}"


async def _examined(specs: Sequence[Mapping[str, Any]]) -> list[Report]:
    """Look at the engines, and say at once which do not answer: others wait for them."""
    reports = await examine(specs)
    for report in reports:
        if not report.reached:
            _say(f"{report.name} does not answer yet: waiting up to {FIRST_LOOK_S:.0f} s for it")
    return reports


def _table(engines: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("engine", "model", "version", "cache", "what to know"):
        table.add_column(name, overflow="fold")
    for engine in engines:
        table.add_row(*_row(engine))
    return table


def _row(engine: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    return (
        str(engine["id"]),
        str(engine["model"] or "-"),
        str(engine.get("version") or "-"),
        "away" if engine.get("away") else str(engine.get("cache_state") or "-"),
        str(engine.get("reason") or ""),
    )
