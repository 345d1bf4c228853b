"""The cluster's API server over plain HTTP: creates objects, with our own account's token.

Token and authorities are read anew for each question: the kubelet exchanges them.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from coordinator.trust.token_review import CannotAsk

LIMIT_S = 5.0
"""For one answer."""

ANSWER_BYTES = 2**20

_TOKEN = re.compile(rb"[!-~]+")

HELP = {
    401: "it does not know our own token",
    403: "we may not: give our ServiceAccount `create` on `tokenreviews.authentication.k8s.io`",
}


class InCluster:
    """Asks as a pod does: by the token and the authorities that are mounted into it."""

    def __init__(self, url: str, ca_file: str | None, token_file: str | None) -> None:
        self._url = url.rstrip("/")
        self._ca_file = ca_file
        self._token_file = token_file

    async def create(self, path: str, document: Mapping[str, Any]) -> bytes:
        """Create an object; return the answer's body. Raises `CannotAsk`."""
        try:
            trusted, headers = await asyncio.to_thread(self._read)
        except OSError as error:
            raise CannotAsk(f"our own account's files: {_reason(error)}") from None
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as session,
                session.post(
                    self._url + path,
                    data=msgspec.json.encode(document),
                    headers=headers,
                    ssl=trusted,
                    allow_redirects=False,
                ) as answer,
            ):
                body = b""
                async for part in answer.content.iter_any():
                    body += part
                    if len(body) > ANSWER_BYTES:
                        raise CannotAsk("its answer is too long")
        except TimeoutError:
            raise CannotAsk(f"no answer within {LIMIT_S:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise CannotAsk(_reason(error)) from None
        if answer.status not in (200, 201):
            why = HELP.get(answer.status, "")
            raise CannotAsk(f"it answers {answer.status}" + (f": {why}" if why else ""))
        return body

    def _read(self) -> tuple[ssl.SSLContext, dict[str, str]]:
        trusted = ssl.create_default_context(cafile=self._ca_file)
        headers = {"content-type": "application/json"}
        if self._token_file is not None:
            token = Path(self._token_file).read_bytes().strip()
            if not _TOKEN.fullmatch(token):
                raise CannotAsk("our own account's files: no token is in `token_file`")
            headers["authorization"] = f"Bearer {token.decode()}"
        return trusted, headers


def _reason(error: Exception) -> str:
    """Return why in a few words: an error's own text may quote what was sent."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted: look at `service_accounts.ca_file`"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return type(error).__name__
