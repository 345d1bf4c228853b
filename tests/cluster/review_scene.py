"""Judges an agent's token as a coordinator does; run where the API server can be reached.

Reads one JSON object: `settings` (`service_accounts`), `token` and `node`. Prints why the token is
refused, or null.
"""

import asyncio
import json
import sys
from typing import Any

import msgspec

from coordinator.trust.api_server import InCluster
from coordinator.trust.proof import Shown
from coordinator.trust.settings import ServiceAccounts
from coordinator.trust.token_review import TokenReview
from lineside.clock import SystemClock
from lineside.ids import NodeId


async def judged(said: Any) -> dict[str, str] | None:
    """Ask the API server."""
    settings = msgspec.convert(said["settings"], ServiceAccounts)
    review = TokenReview(
        InCluster(settings.api_server, settings.ca_file, settings.token_file),
        settings.accounts,
        settings.audience,
        SystemClock(),
        needs_node=settings.needs_node,
    )
    shown = Shown(f"Bearer {said['token']}")
    denied = await review.judge(shown, NodeId(said["node"]))
    return None if denied is None else {"why": denied.why.name, "text": denied.text}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(judged(json.load(sys.stdin)))))
