"""A store in etcd v3, for any number of coordinators. The adapter: keys, revisions, leases.

What is written here is under one prefix of keys. After an answer that did not come, a write is
tried again and then read back, so that whoever was first is told so.
"""

import random
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc

from coordinator.state.store import (
    Change,
    Compacted,
    Delete,
    LeaseId,
    LeaseLost,
    Listing,
    Put,
    Stored,
    StoreUnavailable,
    Write,
    check,
)
from coordinator.state.stores import etcd_watch
from coordinator.state.stores.etcd_calls import (
    GRANT,
    RANGE,
    REVOKE,
    STATUS,
    TXN,
    Access,
    Calls,
    Refused,
    Tries,
)
from lineside.clock import SystemClock
from lineside.v1 import etcd_pb2 as pb

LIFE_KEY = "store/life"
"""Has a random text, by which an etcd that lost its data is told from the one before."""

PAGE = 500
"""Keys asked for at a time."""


class EtcdStore:
    """One process's client."""

    def __init__(self, access: Access, root: str = "/lineside/") -> None:
        """`root` begins every key. Nothing is connected before the first call."""
        self._calls = Calls(access, SystemClock(), random.Random())
        self._root = root
        self._life = ""
        """Of the etcd that was listed last, or watched."""
        self._seen = 0
        """The highest revision that etcd has named to us."""

    async def get(self, key: str) -> Stored | None:
        with _told():
            found = await self._calls.call(RANGE, pb.RangeRequest(key=self._key(key)))
        self._seen = max(self._seen, found.header.revision)
        return _stored(found.kvs[0]) if found.kvs else None

    async def range(self, prefix: str) -> Listing:
        self._life = self._life or await self.life()
        begin, end = self._key(prefix), end_of(self._key(prefix))
        entries: dict[str, Stored] = {}
        request = pb.RangeRequest(key=begin, range_end=end, limit=PAGE)
        with _told():
            while True:
                page = await self._calls.call(RANGE, request)
                entries.update({self._name(each.key): _stored(each) for each in page.kvs})
                request.revision = request.revision or page.header.revision
                self._seen = max(self._seen, request.revision)
                if not page.more:
                    return Listing(entries, request.revision)
                request.key = page.kvs[-1].key + b"\0"

    async def compare_and_set(
        self, key: str, expected: int | None, value: bytes, lease: LeaseId | None = None
    ) -> Stored | None:
        revision = await self.transact({key: expected}, [Put(key, value, lease)])
        return None if revision is None else Stored(value, revision)

    async def transact(
        self, expected: Mapping[str, int | None], writes: Sequence[Write]
    ) -> int | None:
        check(expected, writes)
        request = pb.TxnRequest(
            compare=[self._compare(key, revision) for key, revision in expected.items()],
            success=[self._write(write) for write in writes],
            failure=[
                pb.RequestOp(request_range=pb.RangeRequest(key=self._key(write.key)))
                for write in writes
            ],
        )
        tries, before = Tries(self._calls), self._seen
        with _told():
            while True:
                async with tries.one():
                    answer = await self._calls.ask(TXN, request)
                    self._seen = max(self._seen, answer.header.revision)
                    if answer.succeeded:
                        return answer.header.revision
                    return _ours(answer, writes, before) if tries.failed else None

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Sequence[Change], None]:
        life = self._life = self._life or await self.life()

        async def unchanged() -> None:
            now = await self.life()
            if now != life:
                self._life = now
                raise Compacted("etcd lost its data")

        begin = self._key(prefix)
        events = etcd_watch.events(self._calls, begin, end_of(begin), after, unchanged)
        try:
            with _told():
                async for batch in events:
                    yield [self._change(event) for event in batch]
        finally:
            await events.aclose()

    async def grant(self, ttl_s: int) -> LeaseId:
        with _told():
            made = await self._calls.call(GRANT, pb.LeaseGrantRequest(TTL=ttl_s))
        return LeaseId(made.ID)

    async def keep(self, lease: LeaseId) -> None:
        with _told():
            left_s = await self._calls.keep_alive(lease)
        if left_s <= 0:
            raise LeaseLost(lease)

    async def revoke(self, lease: LeaseId) -> None:
        try:
            with _told():
                await self._calls.call(REVOKE, pb.LeaseRevokeRequest(ID=lease))
        except LeaseLost:
            pass

    async def revision(self) -> int:
        with _told():
            request = pb.RangeRequest(key=self._key(LIFE_KEY), count_only=True)
            return (await self._calls.call(RANGE, request)).header.revision

    async def life(self) -> str:
        fresh = secrets.token_hex(8).encode()
        while True:
            if (stored := await self.get(LIFE_KEY)) is not None:
                return f"{stored.value.decode(errors='replace')} at {stored.revision}"
            await self.compare_and_set(LIFE_KEY, None, fresh)

    async def about(self) -> str:
        try:
            return f"etcd {(await self._calls.call(STATUS, pb.StatusRequest())).version}"
        except Refused:
            return "etcd"  # some tell none but its root

    async def close(self) -> None:
        await self._calls.close()

    # --- keys and messages ------------------------------------------------------------------------

    def _key(self, key: str) -> bytes:
        return (self._root + key).encode()

    def _name(self, key: bytes) -> str:
        return key.decode(errors="replace").removeprefix(self._root)

    def _compare(self, key: str, revision: int | None) -> pb.Compare:
        return pb.Compare(
            result=pb.Compare.EQUAL,
            target=pb.Compare.MOD,
            key=self._key(key),
            mod_revision=revision or 0,
        )

    def _write(self, write: Write) -> pb.RequestOp:
        match write:
            case Put(key, value, lease):
                put = pb.PutRequest(key=self._key(key), value=value, lease=lease or 0)
                return pb.RequestOp(request_put=put)
            case Delete(key):
                gone = pb.DeleteRangeRequest(key=self._key(key))
                return pb.RequestOp(request_delete_range=gone)

    def _change(self, event: pb.Event) -> Change:
        value = event.kv.value if event.type == pb.Event.PUT else None
        return Change(self._name(event.kv.key), value, event.kv.mod_revision)


def end_of(prefix: bytes) -> bytes:
    """Return the first key after all that begin so."""
    for at in reversed(range(len(prefix))):
        if prefix[at] < 0xFF:
            return prefix[:at] + bytes([prefix[at] + 1])
    return b"\0"  # etcd's word for no end


def _stored(entry: pb.KeyValue) -> Stored:
    return Stored(entry.value, entry.mod_revision)


def _ours(answer: pb.TxnResponse, writes: Sequence[Write], before: int) -> int | None:
    """Return the revision of a try that was carried out without our hearing; `None`: none was.

    What stands there was read in the same step in which the conditions did not hold. `before`: a
    revision that there was when we began.
    """
    found = [each.response_range.kvs for each in answer.responses]
    revisions = set()
    for write, kvs in zip(writes, found, strict=True):
        if isinstance(write, Delete):
            if kvs:
                return None
        elif not kvs or kvs[0].value != write.value or kvs[0].lease != (write.lease or 0):
            return None
        else:
            revisions.add(kvs[0].mod_revision)
    if len(revisions) > 1 or any(revision <= before for revision in revisions):
        return None  # one transaction leaves one, and a new one
    return revisions.pop() if revisions else answer.header.revision


@contextmanager
def _told() -> Iterator[None]:
    """Say what etcd refuses in the store's words."""
    try:
        yield
    except Refused as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            raise LeaseLost(str(error)) from error
        raise StoreUnavailable(str(error)) from error
