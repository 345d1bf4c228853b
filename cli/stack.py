"""A coordinator and an agent for engines on this machine, as child processes."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from cli.children import Child, CouldNotRun, child

NODE = "local"

SETTLED = ("none", "unusable", "unproven", "unsure")
"""States of a cache that end by something else than the agent's first words."""

MOST_DECISIONS = 2000
"""The coordinator keeps no more."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A running coordinator with its agent, and where to reach them."""

    coordinator: Child
    agent: Child

    @property
    def http(self) -> str:
        """The gateway's base URL."""
        return f"http://{self.coordinator.listening['http']}"

    @property
    def admin(self) -> str:
        """The admin listener's base URL."""
        return f"http://{self.coordinator.listening['admin']}"

    @property
    def listening(self) -> dict[str, str]:
        """Where to reach each part: `grpc` is for gateways, `agents` for agents."""
        said = self.coordinator.listening
        return {
            "http": said["http"],
            "grpc": said["route"],
            "admin": said["admin"],
            "agents": said["grpc"],
            "agent": self.agent.listening.get("metrics", ""),
        }

    async def engines(self, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
        """Return what `/debug/engines` says. Raises `CouldNotRun`."""
        engines: list[dict[str, Any]] = await self._ask(session, "/debug/engines")
        return engines

    async def policies(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """Return what `/debug/policies` says. Raises `CouldNotRun`."""
        policies: dict[str, Any] = await self._ask(session, "/debug/policies")
        return policies

    async def decisions(self, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
        """Return the records that are kept, newest first. Raises `CouldNotRun`."""
        path = f"/debug/decisions?limit={MOST_DECISIONS}"
        records: list[dict[str, Any]] = await self._ask(session, path)
        return records

    async def _ask(self, session: aiohttp.ClientSession, path: str) -> Any:
        async with session.get(f"{self.admin}{path}") as answer:
            if answer.status != 200:
                raise CouldNotRun(
                    f"{self.admin} answered {answer.status} to this machine",
                    "name a loopback address, such as 127.0.0.1:9090, for the admin listener",
                )
            return await answer.json()

    async def wait_fresh(
        self, session: aiohttp.ClientSession, count: int, limit_s: float
    ) -> list[dict[str, Any]]:
        """Wait until `count` engines are fresh, or will not get so by waiting; `limit_s` at most.

        Return all as they are then.
        """
        deadline = time.monotonic() + limit_s
        engines: list[dict[str, Any]] = []
        while True:
            with suppress(aiohttp.ClientError):  # it died; whoever keeps it says so
                engines = await self.engines(session)
            settled = sum(engine["fresh"] or _is_settled(engine) for engine in engines)
            if settled >= count or time.monotonic() > deadline:
                return engines
            await asyncio.sleep(0.2)


def _is_settled(engine: Mapping[str, Any]) -> bool:
    """Tell whether an engine that answers is in a state that time alone does not change."""
    return bool(engine["model"]) and not engine["away"] and engine["cache_state"] in SETTLED


@asynccontextmanager
async def running(
    engines: Sequence[dict[str, Any]],
    *,
    http: str = "127.0.0.1:0",
    grpc: str = "127.0.0.1:0",
    admin: str = "127.0.0.1:0",
    store: str = "memory",
    settings: dict[str, Any] | None = None,
    logs: Path | None = None,
    log_level: str = "info",
) -> AsyncIterator[Stack]:
    """Run a coordinator for these engines and an agent beside them. Raises `CouldNotRun`.

    `grpc`: where it answers gateways of this machine.
    """
    token = secrets.token_hex(16)
    coordinator = {
        "engines": list(engines),
        "http": http,
        "grpc": "127.0.0.1:0",  # its agent is told which port that is
        "route": grpc,
        "gateways": {"anonymous": True, "transport": "plaintext", "leave_s": 0},
        "admin": admin,
        "store": store,
        "node": NODE,
        "agent_token": token,
        "transport": "plaintext",
        "log_level": log_level,
        **(settings or {}),
    }
    log_of = (lambda name: logs / f"{name}.log") if logs else (lambda name: None)
    async with child(
        "the coordinator", "coordinator.main", config=coordinator, log=log_of("coordinator")
    ) as first:
        agent = _agent(first.listening["grpc"], token, log_level)
        async with child("the agent", "agent.main", config=agent, log=log_of("agent")) as second:
            yield Stack(first, second)


def _agent(coordinator: str, token: str, log_level: str) -> dict[str, Any]:
    return {
        "coordinators": [coordinator],
        "node": NODE,
        "token": token,
        "transport": "plaintext",
        "metrics": "127.0.0.1:0",
        "log_level": log_level,
    }
