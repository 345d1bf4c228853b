"""Bodies to canonical requests, without holding up the event loop for a large one."""

import asyncio
from collections.abc import Mapping

from coordinator.apis import CHAT_FORMS, Api
from coordinator.canonical import BadRequest, Canonical, parse

INLINE_BYTES = 64_000
"""A larger body that must be put into a chat's form is read aside: its turns cost 20 us each."""


async def parsed(api: Api, headers: Mapping[str, str], body: bytes) -> Canonical | BadRequest:
    """Read a body. `headers` have lower-case names."""
    is_converted = api in CHAT_FORMS and api is not Api.OPENAI_CHAT
    if len(body) <= INLINE_BYTES or not is_converted:
        return parse(api, headers, body)
    return await asyncio.to_thread(parse, api, headers, body)
