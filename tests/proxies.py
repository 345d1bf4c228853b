"""A TCP proxy on loopback that stops passing answers on, or everything, when a test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Proxy:
    """Passes connections on to one server."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self.url, self.scheme = "", parts.scheme
        self.mute = False
        """Nothing that the server says is passed on; what clients say is."""
        self.is_shut = False
        """Whoever connects is cut off at once."""
        self.shut_out = 0
        """How many were."""
        self.late_s = 0.0
        """By how much later each part of what the server says is passed on."""
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Break every connection there is."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        if self.is_shut:
            self.shut_out += 1
            writer.transport.abort()
            return
        with suppress(OSError):
            there, out = await asyncio.open_connection(self._host, self._port)
            self._writers |= {writer, out}
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pump(reader, out, False))
                    tasks.create_task(self._pump(there, writer, True))
            except* OSError:
                pass
            finally:
                self._writers -= {writer, out}
                out.transport.abort()
        writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        while part := await reader.read(65536):
            if is_answer and self.late_s:
                await asyncio.sleep(self.late_s)
            if not (is_answer and self.mute):
                writer.write(part)
                await writer.drain()
        raise ConnectionError  # either end ends both


@asynccontextmanager
async def proxy(server: str) -> AsyncIterator[Proxy]:
    """Run a proxy before a server."""
    made = Proxy(server)
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"{made.scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listener.close()
        made.cut()
        await asyncio.sleep(0)
