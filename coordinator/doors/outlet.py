"""Where the parts of a stream go on to its client, once its head is out. Decides nothing.

aiohttp's own way to write a part leads through two coroutines and three more calls, which cost as
much as all else that is done with it. Head and end are still aiohttp's: here is only what comes
between them, framed as HTTP/1.1 wants it.
"""

from aiohttp import web


class Outlet:
    """One stream's. Its response has been prepared, and has begun."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        """Raise `ConnectionResetError` if the client has left."""
        if (transport := request.transport) is None:
            raise ConnectionResetError
        self._transport = transport
        self._protocol = request.protocol
        self._writer = request.writer
        self._is_chunked = response.headers.get("transfer-encoding") == "chunked"

    def send(self, part: bytes) -> bool:
        """Send a part that is not empty; return whether to `drain` before the next one.

        Raises `ConnectionResetError` if the client has left.
        """
        if self._transport.is_closing():
            raise ConnectionResetError
        if self._is_chunked:
            part = b"%x\r\n%b\r\n" % (len(part), part)
        self._transport.write(part)
        return self._protocol.writing_paused

    async def drain(self) -> None:
        """Wait until the client has taken in what it was sent, or most of it."""
        await self._writer.drain()
