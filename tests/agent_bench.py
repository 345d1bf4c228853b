"""A node agent before engines that a test plays, and events for them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import aiohttp

from agent.assignment import Assigned, AssignedEngine, Scheme
from agent.kv_events import Batch, BlockStored, KvEvent
from agent.node import FLUSH_MAX_S, FLUSH_S, Node
from agent.sequence import Item, Place
from agent.subscriber import CannotSubscribe
from lineside.hashing import chain, pack, seed
from lineside.ids import EngineId, Medium
from lineside.signals import NodeGpus, Status
from tests.manual_clock import ManualClock, settle

SECRET = b"secret"
SCHEME = Scheme(unit=16, hash="xxh3_64", secret=SECRET)
A, B = EngineId("127.0.0.1:8001"), EngineId("127.0.0.1:8002")
TOKENS = list(range(128))
KEYS = dict.fromkeys(chain(seed(SECRET), pack(TOKENS)), Medium.GPU)


def engine(id: EngineId = A, **other: object) -> AssignedEngine:
    made = AssignedEngine(id, f"http://{id}", events="tcp://127.0.0.1:5557", stride=1)
    return replace(made, **other)  # type: ignore[arg-type]


def stored(medium: Medium = Medium.GPU, first: int = 1) -> BlockStored:
    """Four blocks of 32 tokens, all of `TOKENS`."""
    return BlockStored(
        keys=tuple(range(first, first + 4)),
        parent=None,
        packed=pack(TOKENS),
        block_size=32,
        medium=medium,
        group=0,
        full_attention=True,
        lora=None,
        salt=None,
        media=(),
        keyable=4,
    )


def batch(*events: KvEvent, seq: int = 0, undecodable: int = 0) -> Batch:
    return Batch(seq, 0.0, 0, events, undecodable)


@dataclass
class FakeSource:
    """An engine's publisher, fed by the test."""

    engine: AssignedEngine
    opened: bool = False
    closed: bool = False
    undecodable: int = 0
    refusal: str = ""
    replays: int = 0
    place: Place | None = None
    checks: int = 0
    read_anews: int = 0
    queue: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)

    def check(self) -> None:
        self.checks += 1

    def read_anew(self) -> None:
        self.read_anews += 1

    async def items(self) -> AsyncGenerator[Item, None]:
        self.opened = True
        try:
            if self.refusal:
                raise CannotSubscribe(self.refusal)
            while True:
                yield await self.queue.get()
        finally:
            self.closed = True


class Bench:
    """A node on a manual clock, whose engines' sources the test feeds."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.clock = ManualClock()
        self.sources: list[FakeSource] = []
        self.refusal = ""
        self.gpus = NodeGpus(unavailable="no GPU on this node")
        self.node = Node(
            tasks=tasks,
            clock=self.clock,
            session=cast(aiohttp.ClientSession, NoServer()),
            subscribe=self.subscribe,
            read_gpus=lambda: self.gpus,
        )
        self.changed = self.node.subscribe()

    def subscribe(self, engine: AssignedEngine, place: Place | None = None) -> FakeSource:
        self.sources.append(FakeSource(engine, refusal=self.refusal, place=place))
        return self.sources[-1]

    async def assign(
        self,
        *engines: AssignedEngine,
        revision: int = 1,
        coordinator: str = "c1",
        scheme: Scheme = SCHEME,
    ) -> None:
        self.node.adopt(scheme, Assigned(coordinator, revision, engines))
        await settle()

    async def feed(self, *items: Item) -> None:
        """Give items to the newest source and let the window close."""
        for item in items:
            self.sources[-1].queue.put_nowait(item)
        await self.clock.advance(FLUSH_MAX_S + FLUSH_S)

    def status(self, engine: EngineId = A) -> Status:
        return self.node.statuses()[engine].value

    def held(self, engine: EngineId = A) -> dict[int, Medium]:
        log = self.node.log(engine)
        assert log
        return cast(dict[int, Medium], log.held)

    def generation(self, engine: EngineId = A) -> str:
        log = self.node.log(engine)
        assert log
        return log.generation

    def saw(self, page: str, engine: EngineId = A) -> bool:
        return self.node._took_page(f"http://{engine}", page.encode(), self.clock.now)


class NoServer:
    """A session whose every request fails."""

    def get(self, url: str, **_: object) -> object:
        raise aiohttp.ClientConnectionError


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    class Done(Exception):
        pass

    try:
        async with asyncio.TaskGroup() as tasks:
            yield Bench(tasks)
            raise Done
    except* Done:
        pass


PAGE = """vllm:num_requests_running{{engine="0"}} {running}
vllm:prompt_tokens_total{{engine="0"}} {prompt}
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
vllm:time_to_first_token_seconds_count{{engine="0"}} {prefills}
vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}
vllm:engine_sleep_state{{engine="0",sleep_state="weights_offloaded"}} {asleep}
"""


def page(**values: int) -> str:
    names = ("running", "prompt", "hits", "prefills", "asleep")
    return PAGE.format(**{**dict.fromkeys(names, 0), "awake": 1, **values})
