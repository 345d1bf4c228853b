"""`lineside route`: where a request would go now, and why. Nothing is sent to an engine."""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli import admin
from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.explain import explained
from cli.gateway import Coordinator, route, told
from cli.shown import console, print_json
from lineside.findings import Finding, Place, did_you_mean

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

MEMBERS = ("path", "headers", "body")

DESCRIPTION = """\
Say where a request would go now, and why: every engine with what it holds of
the prompt, its queue and its predicted time to first token. Nothing is sent,
accounted or kept. With --grpc ask as a gateway does: what is it told to send?

FILE holds JSON: a body as a client sends it (with `messages` or `prompt`), or
{"path": ..., "headers": {...}, "body": {...}}.

Exit codes: 0 an engine was chosen, 1 refused, 2 usage, 3 could not reach."""


class Unreadable(Exception):
    """What was given is no request."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "route", help="where a request would go now, and why", description=DESCRIPTION
    )
    command.add_argument(
        "-f", dest="file", required=True, metavar="FILE", help="the request; `-`: standard input"
    )
    admin.add_options(command)
    command.add_argument("--grpc", metavar="ADDRESS", help="ask the `route` listener there instead")
    command.add_argument("--token-file", type=Path, metavar="FILE", help="a gateway's token for it")
    command.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="whom to trust there: an authority, or tls.crt in gateways.self_signed_dir"
        " (default: plaintext)",
    )
    command.set_defaults(run=_route, speaks_grpc=True)


def _route(arguments: argparse.Namespace) -> int:
    name: str = arguments.file
    try:
        document = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CouldNotRun(f"{name}: cannot be read: {(error.strerror or '').lower()}") from None
    try:
        request = asked(document, "stdin" if name == "-" else name)
    except Unreadable as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments.grpc is not None:
        return _ask_as_gateway(arguments, request)
    body = json.dumps(request).encode()
    record = asyncio.run(admin.ask(admin.listener(arguments), "/debug/route", dict, body=body))
    if arguments.json:
        print_json(record)
    else:
        console().print(explained(record))
    return 1 if record.get("refusal") else 0


def _ask_as_gateway(arguments: argparse.Namespace, request: Mapping[str, Any]) -> int:
    whom = Coordinator(arguments.grpc, arguments.token_file, arguments.ca_file)
    answer = asyncio.run(route(whom, request))
    lines = [json.dumps(answer)] if arguments.json else told(answer)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if "refused" in answer else 0


def asked(document: bytes, source: str) -> dict[str, Any]:
    """Return what to post: `{path, headers, body}`, made from a bare body where need be.

    Raises `Unreadable`. The document's text is never repeated.
    """
    try:
        said = json.loads(document)
    except json.JSONDecodeError as error:
        place = Place(source, error.lineno, error.colno)
        raise Unreadable(Finding(place, "syntax", "not valid JSON", error.msg.lower())) from None
    except (UnicodeDecodeError, RecursionError):
        raise _unreadable(source, "not JSON in UTF-8") from None
    if not isinstance(said, dict):
        raise _unreadable(source, "a request is a JSON object")
    if "body" not in said:
        return {"path": _path(said, source), "headers": {}, "body": said}
    for member in said:
        if member not in MEMBERS:
            help = did_you_mean(member, MEMBERS) or "there are `path`, `headers`, `body`"
            raise _unreadable(source, f"there is no member `{member}` beside `body`", help)
    headers, path = said.get("headers", {}), said.get("path")
    if not isinstance(headers, dict):
        raise _unreadable(source, "`headers` must be an object")
    return {"path": path or _path(said["body"], source), "headers": headers, "body": said["body"]}


def _path(body: Any, source: str) -> str:
    if isinstance(body, dict) and "messages" in body:
        return CHAT
    if isinstance(body, dict) and "prompt" in body:
        return COMPLETIONS
    help = "a chat has `messages`, a completion `prompt`; else name the `path` beside `body`"
    raise _unreadable(source, "neither `messages` nor `prompt` says what is asked", help)


def _unreadable(source: str, message: str, help: str = "") -> Unreadable:
    return Unreadable(Finding(Place(source, 1, 1), "request", message, help))
