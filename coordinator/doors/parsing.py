"""A client's request as all doors read it: its headers, its id, its body.

Holds up the event loop for no large body.
"""

import asyncio
import re
import secrets
from collections.abc import Iterable, Mapping

from coordinator.apis import CHAT_FORMS, Api
from coordinator.canonical import BadRequest, Canonical, parse

INLINE_BYTES = 64_000
"""A larger body that must be put into a chat's form is read aside: its turns cost 20 us each."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


async def parsed(api: Api, headers: Mapping[str, str], body: bytes) -> Canonical | BadRequest:
    """Read a body. `headers` have lower-case names."""
    is_converted = api in CHAT_FORMS and api is not Api.OPENAI_CHAT
    if len(body) <= INLINE_BYTES or not is_converted:
        return parse(api, headers, body)
    return await asyncio.to_thread(parse, api, headers, body)


def joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name; those of one name are one list."""
    together: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        together[name] = f"{together[name]},{value}" if name in together else value
    return together


def request_id_of(said: str) -> str:
    """Return the id that a client gave its request, if it is one, or a new one."""
    return said if _REQUEST_ID.fullmatch(said) else secrets.token_hex(16)
