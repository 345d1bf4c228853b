"""The recorded exchanges of cases/http: what a real engine was asked, and what it answered."""

import json
from pathlib import Path
from typing import Any

import aiohttp

HTTP = Path(__file__).parent / "cases" / "http"


def recorded(name: str) -> Any:
    """Return an exchange."""
    return json.loads((HTTP / f"{name}.json").read_text())


async def again(client: aiohttp.ClientSession, name: str) -> tuple[aiohttp.ClientResponse, str]:
    """Send a recorded request; return the response and its text."""
    request = recorded(name)["request"]
    body = request["body"]
    async with client.request(
        request["method"],
        request["path"],
        data=body if isinstance(body, str) or body is None else json.dumps(body),
        headers=request["headers"],
    ) as response:
        return response, await response.text()


def shape(value: Any) -> Any:
    """Return a value with its scalars replaced by their types."""
    match value:
        case dict():
            return {key: shape(inner) for key, inner in value.items()}
        case list():
            return [shape(inner) for inner in value]
        case _:
            return type(value).__name__
