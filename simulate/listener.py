"""The HTTP port of one simulated server, which a fault can close for a while."""

import asyncio
import errno

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lineside.clock import Clock
from simulate.faults import Faults, RefuseConnections

POLL_S = 0.02
"""How often is looked whether connections are still to be refused."""


class Listener:
    """Listens on one port, and on the same one after every pause."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self.port = port
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._busy: set[asyncio.BaseTransport] = set()

    @property
    def watch(self) -> Middleware:
        """The middleware that knows which connections are being answered on."""

        @web.middleware
        async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
            transport = request.transport
            if transport is None:
                return await handler(request)
            self._busy.add(transport)
            try:
                response = await handler(request)
            finally:
                self._busy.discard(transport)
            if self._site is None:
                response.force_close()
            return response

        return watched

    async def open(self, runner: web.AppRunner) -> None:
        """Accept connections. Raises `OSError` for a port that is taken."""
        self._runner = runner
        self._site = web.TCPSite(runner, self._host, self.port)
        try:
            await self._site.start()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "another process listens there" if taken else error.strerror
            text = f"cannot listen on {self._host}:{self.port}: {why}; name another --port, or 0"
            raise OSError(error.errno, text) from error
        self.port = runner.addresses[0][1]

    async def obey(self, faults: Faults, clock: Clock) -> None:
        """Close and open as the faults say, until cancelled."""
        began = asyncio.Event()
        faults.told.append(began.set)
        while True:
            await began.wait()
            began.clear()
            refuse = faults.active(RefuseConnections)
            if refuse is None or self._site is None or self._runner is None:
                continue
            faults.count(refuse)
            await self._close(self._site)
            while faults.active(RefuseConnections):
                await clock.sleep(POLL_S)
            await self.open(self._runner)

    async def _close(self, site: web.TCPSite) -> None:
        """Refuse connections and end idle ones; what is being answered is finished."""
        await site.stop()
        self._site = None
        server = self._runner and self._runner.server
        for connection in server.connections if server else ():
            transport = connection.transport
            if transport is not None and transport not in self._busy:
                transport.close()
