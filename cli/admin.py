"""Asks a coordinator's admin listener.

Never shows the token, and sends it to no other address: redirects are not followed.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from rich.console import RenderableType

from cli.children import CouldNotRun
from cli.parsing import Parser
from cli.shown import console, print_json

DEFAULT = "http://127.0.0.1:9090"
URL_VARIABLE = "LINESIDE_ADMIN"
TOKEN_VARIABLE = "LINESIDE_ADMIN_TOKEN"

TIMEOUT_S = 10.0
"""For a whole answer; the listener shares its loop with requests and may be busy."""

MAX_ANSWER_BYTES = 64 << 20
"""All the decisions that a coordinator keeps are a tenth of it; more is not one of its answers."""


class Refused(Exception):
    """The listener answered, and the answer is no; `help` says what to do about it."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help


@dataclass(frozen=True, slots=True)
class Listener:
    """Whom to ask."""

    url: str
    token: str = field(default="", repr=False)


def add_options(command: Parser) -> None:
    """Add the options of every command that asks."""
    command.add_argument(
        "--admin",
        type=_url,
        default=os.environ.get(URL_VARIABLE) or DEFAULT,
        metavar="URL",
        help=f"the coordinator's admin listener (default: ${URL_VARIABLE}, else {DEFAULT};"
        f" a token comes from ${TOKEN_VARIABLE})",
    )
    command.add_argument("--json", action="store_true", help="print what the listener answers")


def listener(arguments: argparse.Namespace) -> Listener:
    """Return whom these options name. Raises `Refused` for a token that no header can carry."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise Refused(f"the token in {TOKEN_VARIABLE} has characters that no token has")
    return Listener(arguments.admin, token)


def _url(text: str) -> str:
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = url.port
    except ValueError:
        port = None
    bare = not (url.path.strip("/") or url.query or url.fragment or "@" in url.netloc)
    if url.scheme not in ("http", "https") or not (port or url.hostname) or not bare:
        said = f"write http://HOST:PORT of the admin listener, here or in {URL_VARIABLE}"
        raise argparse.ArgumentTypeError(said)
    host = url.netloc if url.hostname else f"127.0.0.1:{port}"
    return f"{url.scheme}://{host}"


async def ask(
    whom: Listener,
    path: str,
    kind: type[list[Any]] | type[dict[str, Any]],
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Any:
    """Return an endpoint's JSON of this kind; a body is posted. Raises `CouldNotRun`, `Refused`."""
    headers = {"authorization": f"Bearer {whom.token}"} if whom.token else {}
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            aiohttp.ClientSession(headers=headers) as session,
            session.request(
                "GET" if body is None else "POST",
                whom.url + path,
                params=query,
                data=body,
                allow_redirects=False,
            ) as answer,
        ):
            said = await _read(whom, answer)
            if answer.status == 404 and path.count("/") < 3:  # every coordinator has this path
                raise _stranger(whom)
            return _said(whom, answer.status, said, kind)
    except TimeoutError:
        raise CouldNotRun(f"{whom.url} did not answer within {TIMEOUT_S:.0f} s") from None
    except aiohttp.ClientError as error:
        raise CouldNotRun(
            f"could not reach {whom.url}: {_why(error)}",
            f"is a coordinator running, and is that its admin listener? --admin or {URL_VARIABLE}"
            " names another",
        ) from None


def show(
    arguments: argparse.Namespace,
    path: str,
    kind: type[list[Any]] | type[dict[str, Any]],
    shown: Callable[[Any], RenderableType],
) -> int:
    """Ask, and print what is said: as it is with `--json`, else as `shown` makes it."""
    said = asyncio.run(ask(listener(arguments), path, kind))
    if arguments.json:
        print_json(said)
    else:
        console().print(shown(said))
    return 0


async def _read(whom: Listener, answer: aiohttp.ClientResponse) -> bytes:
    read = bytearray()
    async for part in answer.content.iter_any():
        read += part
        if len(read) > MAX_ANSWER_BYTES:
            raise _stranger(whom)
    return bytes(read)


def _said(whom: Listener, status: int, body: bytes, kind: type[Any]) -> Any:
    try:
        said = json.loads(body)
    except ValueError:
        raise _stranger(whom) from None
    if status == 200:
        if not isinstance(said, kind):
            raise _stranger(whom)
        return said
    try:
        message = str(said["error"]["message"])
    except (KeyError, TypeError):
        raise _stranger(whom) from None
    if status == 401:
        asks = "refuses the token" if whom.token else "asks for a token"
        help = f"set {TOKEN_VARIABLE} to the coordinator's `admin_token`"
        raise Refused(f"{whom.url} {asks}", help)
    if status == 403:
        help = f"ask from there, or set `admin_token` there and {TOKEN_VARIABLE} here"
        raise Refused(f"{whom.url} answers callers on its own machine only", help)
    if status < 500:
        raise Refused(message)
    raise CouldNotRun(f"{whom.url} failed: {message}", "the coordinator's log has more")


def _stranger(whom: Listener) -> CouldNotRun:
    return CouldNotRun(
        f"{whom.url} does not answer as an admin listener",
        f"its port is the coordinator's `admin`, not `http`; --admin or {URL_VARIABLE} names it",
    )


def _why(error: aiohttp.ClientError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "there is no such host"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted here"
    if isinstance(error, aiohttp.ClientSSLError):
        return "TLS fails: an admin listener speaks http"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno).lower()
    return "the connection broke"
