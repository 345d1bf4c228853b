"""An own look at an engine's KV events, which shares no code with the agent.

Tells which of a prompt's blocks left the cache, and when: what the engine did between a decision
and its request's turn can then be told from what was mistaken.
"""

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
import zmq

from tests.vllm.model import BLOCK
from tests.vllm.servers import Server

POLL_MS = 50

Key = int | bytes
Scope = tuple[str | None, str | None]
"""An adapter's name and a cache salt: what else tells prompts of equal tokens apart."""


class Removal(NamedTuple):
    at: float
    """Unix time of the batch, by the engine's clock, which is also ours."""
    key: Key


class Witness:
    """One subscriber, on a thread of its own; use as a context manager."""

    def __init__(self, endpoint: str) -> None:
        self.removals: list[Removal] = []
        self._keys: dict[tuple[Key | None, tuple[int, ...], Scope | None], Key] = {}
        self._block_size = BLOCK
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._endpoint = endpoint
        self._thread = threading.Thread(target=self._read, name="witness")

    @classmethod
    def of(cls, server: Server) -> "Witness":
        """Return one of a server with one engine."""
        return cls(server.get("/kv_event_sources")["0"]["endpoint"])

    def __enter__(self) -> "Witness":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def evicted(self, prompt: Sequence[int], scope: Scope, since: float, until: float) -> int:
        """Count the blocks of a prompt that left within a time; copies count."""
        with self._lock:
            keys = set(self._chain(prompt, scope))
            return sum(r.key in keys and since <= r.at <= until for r in self.removals)

    def _chain(self, prompt: Sequence[int], scope: Scope) -> Iterator[Key]:
        parent: Key | None = None
        size = self._block_size
        for start in range(0, len(prompt) - size + 1, size):
            tokens = tuple(prompt[start : start + size])
            key = self._keys.get((parent, tokens, scope if parent is None else None))
            if key is None:  # never announced
                return
            yield key
            parent = key

    def _read(self) -> None:
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.subscribe(b"")
            socket.connect(self._endpoint)
            while not self._over.is_set():
                if socket.poll(POLL_MS):
                    at, events, *_ = msgspec.msgpack.decode(socket.recv_multipart()[-1])
                    with self._lock:
                        for event in events:
                            self._take(at, event)

    def _take(self, at: float, event: dict[str, Any]) -> None:
        if event["type"] == "BlockRemoved":
            self.removals += [Removal(at, key) for key in event["block_hashes"]]
        elif event["type"] == "BlockStored":
            parent, size = event["parent_block_hash"], event["block_size"]
            self._block_size = size
            extra = (event.get("extra_keys") or [None])[0] or []
            lora = event.get("lora_name")
            salts = [each for each in extra if each != lora]
            scope = lora, salts[0] if salts else None
            for place, key in enumerate(event["block_hashes"]):
                tokens = tuple(event["token_ids"][place * size : (place + 1) * size])
                self._keys[parent, tokens, scope if parent is None else None] = key
                parent = key
