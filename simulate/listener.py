"""The HTTP port of one simulated server, which a fault can close for a while."""

from aiohttp import web

from lineside.clock import Clock
from simulate.faults import Faults, RefuseConnections

POLL_S = 0.02
"""How often is looked whether connections are to be refused."""


class Listener:
    """Listens on one port, and on the same one after every pause."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner = runner
        self._host = host
        self.port = port
        self._site: web.TCPSite | None = None

    async def open(self) -> None:
        """Accept connections. Raises `OSError` for a port that is taken."""
        self._site = web.TCPSite(self._runner, self._host, self.port)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Refuse connections and end idle ones; what is being answered goes on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        if self._runner.server is not None:
            self._runner.server.pre_shutdown()

    async def obey(self, faults: Faults, clock: Clock) -> None:
        """Close and open as the faults say, until cancelled."""
        while True:
            refuse = faults.active(RefuseConnections)
            if refuse and self._site is not None:
                faults.count(refuse)
                await self.close()
            elif not refuse and self._site is None:
                await self.open()
            await clock.sleep(POLL_S)
