"""A coordinator in this process, on free ports, and a client of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from coordinator.config import Config, EngineSpec
from coordinator.main import run
from tests.waiting import until


@dataclass
class Running:
    """A coordinator and a client of it."""

    http: str
    admin: str
    grpc: str
    session: aiohttp.ClientSession
    stop: asyncio.Event
    route: str = ""
    """Where it answers gateways over gRPC; empty: nowhere."""

    @property
    def address(self) -> tuple[str, int]:
        """Where the gateway listens."""
        host, _, port = self.http.removeprefix("http://").rpartition(":")
        return host, int(port)

    async def post(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        async with self.session.post(self.http + path, json=body, headers=headers) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, headers, await answer.read()

    async def debug(self, path: str) -> Any:
        async with self.session.get(self.admin + path) as answer:
            return await answer.json()

    async def metrics(self) -> dict[str, float]:
        async with self.session.get(self.admin + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line[:1] != "#")
        return {name: float(value) for name, value in samples}

    async def record(self, headers: dict[str, str]) -> dict[str, Any]:
        record: dict[str, Any] = await self.debug(
            f"/debug/decisions/{headers['x-lineside-decision']}"
        )
        return record

    async def ready(self) -> bool:
        return bool((await self.debug("/readyz"))["ready"])

    async def inflight(self) -> list[int]:
        return [engine["inflight"] for engine in await self.debug("/debug/engines")]


@asynccontextmanager
async def coordinator(*engines: EngineSpec, **settings: Any) -> AsyncIterator[Running]:
    """Run a coordinator that has asked each engine once."""
    config = Config(
        transport="plaintext",
        engines=engines,
        http="127.0.0.1:0",
        grpc="127.0.0.1:0",
        admin="127.0.0.1:0",
        **({"probe_s": 0.1, "drain_s": 2.0} | settings),
    )
    stop = asyncio.Event()
    listening: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(config, stop, listening.set_result))
    await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
    where = listening.result() if listening.done() else task.result()
    async with aiohttp.ClientSession() as session:
        running = Running(
            f"http://{where['http']}", f"http://{where['admin']}", where["grpc"], session, stop,
            where.get("route", ""),
        )  # fmt: skip
        await until_found(running)
        yield running
    stop.set()
    await task


async def until_found(running: Running) -> None:
    async def found() -> bool:
        engines = await running.debug("/debug/engines")
        return not any(engine["reason"] == "not asked yet" for engine in engines)

    await until(found)
