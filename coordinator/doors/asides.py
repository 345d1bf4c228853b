"""Questions to one engine beside generation: stored responses and token counts.

No lease, no decision, no fallback: whoever asks says whom. Their sessions and keys are those that
requests have.
"""

from collections.abc import Mapping
from typing import TypeAlias

import aiohttp
from multidict import CIMultiDict

from coordinator.config import Timeouts
from coordinator.engines import Engine

ANSWER_BYTES = 64 * 2**20
"""A longer answer counts as none."""

Headers: TypeAlias = CIMultiDict[str] | Mapping[str, str]

ERRORS = (aiohttp.ClientError, TimeoutError)
"""What `ask` and reading its answer may raise."""


class Asides:
    """Asks engines."""

    def __init__(self, session: aiohttp.ClientSession, timeouts: Timeouts) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s)

    async def ask(
        self, engine: Engine, method: str, path: str, headers: Headers, body: bytes | None = None
    ) -> aiohttp.ClientResponse:
        """Return an engine's answer, whose end is the caller's. Raises one of `ERRORS`."""
        return await self._session.request(
            method,
            engine.base_url + path,
            data=body,
            headers=headers,
            timeout=self._timeout,
            allow_redirects=False,
        )


async def whole(answer: aiohttp.ClientResponse) -> bytes | None:
    """Return an answer's body; `None` where it is beyond the bound. Raises one of `ERRORS`."""
    parts, size = [], 0
    while part := await answer.content.readany():
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES:
            return None
    return b"".join(parts)
