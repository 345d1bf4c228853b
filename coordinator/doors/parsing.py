"""A client's request as all doors read it: its headers, its id, its body.

Holds up the event loop for no large body.
"""

import os
import re
from collections.abc import Iterable, Mapping
from functools import partial

from coordinator.apis import CHAT_FORMS, Api
from coordinator.bodies import CONVERTED_BYTES, LARGE_BYTES
from coordinator.canonical import BadRequest, Canonical, parse
from coordinator.heavy import Heavy

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


async def parsed(
    api: Api, headers: Mapping[str, str], body: bytes, heavy: Heavy
) -> Canonical | BadRequest:
    """Read a body. `headers` have lower-case names."""
    is_converted = api in CHAT_FORMS and api is not Api.OPENAI_CHAT
    inline = CONVERTED_BYTES if is_converted else LARGE_BYTES
    return await heavy.run(partial(parse, api, headers, body), len(body), inline)


def joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name; those of one name are one list."""
    together: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        together[name] = f"{together[name]},{value}" if name in together else value
    return together


def request_id_of(said: str) -> str:
    """Return the id that a client gave its request, if it is one, or a new one."""
    return said if said and _REQUEST_ID.fullmatch(said) else os.urandom(16).hex()
