"""Questions to one backend beside generation: stored responses and token counts.

No lease, no decision, no fallback: whoever asks says whom. Their sessions and keys are those that
requests have.
"""

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from coordinator.apis import Api
from coordinator.candidates import Provider
from coordinator.config import Timeouts
from coordinator.engines import Engine
from coordinator.heavy import Heavy
from coordinator.providers.keys import ProviderKeys

ANSWER_BYTES = 64 * 2**20
"""A longer answer counts as none."""

Headers: TypeAlias = CIMultiDict[str] | Mapping[str, str]

ERRORS = (aiohttp.ClientError, TimeoutError)
"""What `ask` and reading its answer may raise."""


class Asides:
    """Asks engines, and providers for counts."""

    def __init__(
        self, session: aiohttp.ClientSession, timeouts: Timeouts, keys: ProviderKeys, heavy: Heavy
    ) -> None:
        self._session = session
        self._keys = keys
        self._heavy = heavy
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

    async def ask_to_count(
        self, provider: Provider, client: Mapping[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        """Return a provider's answer to the question for a message's tokens, as `ask` does.

        Of the client's headers it gets those that say how its API is to be.
        """
        path = provider.dialect.count_path
        assert path is not None  # others are not asked
        url = provider.base_url + path
        headers = await self._heavy.run(partial(self._keys.headers, provider, url, body), len(body))
        for name in provider.dialect.kept(Api.ANTHROPIC_MESSAGES):
            if name in client:
                headers[name] = client[name]
        return await self._session.post(
            URL(url, encoded=True),
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
