"""Engines' API keys: read from files, put on every request to their engine, shown to nobody.

A file is read again at each look at its engine, so a changed one counts within `probe_s`. Sessions
carry a middleware that adds the key by the origin that is asked: no caller can forget it, and no
other server gets it.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import aiohttp
from yarl import URL

from coordinator.config import EngineSpec
from lineside import logs

log = logs.get("coordinator.credentials")

KEY_BYTES = 4096
"""A longer file is no key."""

_KEY = re.compile(r"[\x21-\x7e]+")

_Origin = tuple[str, str | None, int | None]


class Credentials:
    """The keys in force. Written by discovery's looks, read by every request."""

    def __init__(self, files: Mapping[str, Path], more: bool = False) -> None:
        """`files` by the engine's URL; `more`: there may be others later."""
        self._files = {_origin(URL(url)): path for url, path in files.items()}
        self._keys: dict[_Origin, str] = {}
        self._more = more

    @classmethod
    def of(cls, specs: Iterable[EngineSpec], more: bool = False) -> "Credentials":
        """Return the keys that a configuration names, not read yet."""
        files = {spec.url: Path(spec.api_key_file) for spec in specs if spec.api_key_file}
        return cls(files, more)

    def add(self, spec: EngineSpec) -> None:
        """Take a server in that came later."""
        if spec.api_key_file is not None:
            self._files[_origin(URL(spec.url))] = Path(spec.api_key_file)

    def drop(self, spec: EngineSpec) -> None:
        """Send no key there any more: another server may get the address."""
        origin = _origin(URL(spec.url))
        self._files.pop(origin, None)
        self._keys.pop(origin, None)

    async def look(self, url: str) -> str:
        """Do as `read` does, on a thread: the file may lie on a disk that is far away."""
        if _origin(URL(url)) not in self._files:
            return ""
        return await asyncio.to_thread(self.read, url)

    def read(self, url: str) -> str:
        """Read an engine's key file, if it has one; return why there is no key, else nothing.

        A file that cannot be read any more leaves the key that was read last in force.
        """
        origin = _origin(URL(url))
        if (path := self._files.get(origin)) is None:
            return ""
        key, problem = read_key(path, "api_key_file")
        known = self._keys.get(origin)
        if key is None:
            return problem if known is None else ""
        if known not in (None, f"Bearer {key}"):
            log.info("engine key changed", url=url)
        self._keys[origin] = f"Bearer {key}"
        return ""

    def middlewares(self) -> tuple[aiohttp.ClientMiddlewareType, ...]:
        """Return what a session needs to send the keys; nothing where there are none."""
        return (self._add,) if self._files or self._more else ()

    def headers(self, base_url: str) -> dict[str, str]:
        """Return what an engine is to be sent, for a gateway that sends requests by itself."""
        key = self._keys.get(_origin(URL(base_url)))
        return {} if key is None else {"authorization": key}

    async def _add(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if key := self._keys.get(_origin(request.url)):
            request.headers["authorization"] = key
        return await handler(request)


def _origin(url: URL) -> _Origin:
    return url.scheme, url.host, url.port


def read_key(path: Path, setting: str) -> tuple[str | None, str]:
    """Return a file's key, or why it has none. No message shows what it holds.

    `setting` is what names the file.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(KEY_BYTES + 1)
    except OSError as error:
        return None, f"`{setting}` cannot be read: {error.strerror or 'no reason given'}"
    text = raw.decode("latin-1").strip()
    if len(raw) > KEY_BYTES or not _KEY.fullmatch(text):
        return None, f"`{setting}` must hold one key: a line of printable characters"
    return text, ""
