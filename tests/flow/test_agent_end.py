"""An agent that is told to end in the moment its coordinator dies ends all the same."""

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import count

import grpc
import pytest

from agent.dialling import Dialling
from agent.report import Reporter
from lineside.ids import BlockKey
from lineside.v1 import agents_pb2 as pb
from lineside.v1 import agents_pb2_grpc as rpc
from tests.streams import CLOCK, NODE, TOKEN, A, FakeHub, gpu
from tests.waiting import until

pytestmark = pytest.mark.flow

ROUNDS = 60
"""One in seven of them left a reporter at work when its cancellation could get lost."""

SPREAD_S = 0.003


class Reader(rpc.AgentsServicer):
    """Assigns one engine and reads for as long as it lives."""

    async def Connect(
        self,
        request_iterator: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.CoordinatorMessage],
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        await anext(aiter(request_iterator))
        scheme = pb.KeyScheme(unit=16, hash="xxh3_64")
        hello = pb.CoordinatorHello(
            protocol=1, coordinator="c1", key_scheme=scheme, secret=b"secret"
        )
        yield pb.CoordinatorMessage(hello=hello)
        assigned = pb.AssignedEngine(id=A, base_url="http://127.0.0.1:1", stride=1)
        yield pb.CoordinatorMessage(assignment=pb.Assignment(revision=1, engines=[assigned]))
        yield pb.CoordinatorMessage(resume=pb.Resume(engine=A))
        async for _ in request_iterator:
            pass


async def keep_busy(hub: FakeHub) -> None:
    for number in count(1):
        hub.change(A, gpu([BlockKey(number)]))
        await asyncio.sleep(0)


async def ends(after_s: float) -> bool:
    """Tell whether a busy reporter ends that is cancelled so long after its server was told to."""
    server = grpc.aio.server()
    rpc.add_AgentsServicer_to_server(Reader(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    hub = FakeHub()
    reporter = Reporter(Dialling.plaintext(TOKEN).to(f"127.0.0.1:{port}"), NODE, "life", hub, CLOCK)
    running = asyncio.create_task(reporter.run())
    await until(lambda: A in hub.logs)
    busy = asyncio.create_task(keep_busy(hub))
    stopping = asyncio.create_task(server.stop(0))
    await asyncio.sleep(after_s)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=2.0)
    for task in (running, busy):
        task.cancel()
    await asyncio.gather(running, busy, stopping, return_exceptions=True)
    return bool(done) and running.cancelled()


async def test_a_reporter_ends_though_its_coordinator_dies_in_that_moment() -> None:
    rng = random.Random(1)
    for _ in range(ROUNDS):
        after_s = rng.uniform(0, SPREAD_S)
        assert await ends(after_s), f"still at work, cancelled after {after_s * 1000:.2f} ms"
