"""Engines, a coordinator and an agent as processes of their own, to be killed and started again.

Ports are fixed, and taken from below those that the system hands out: a process that is started
again finds its own free.
"""

import asyncio
import json
import random
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import simulate

LIMIT_S = 15.0
_RNG = random.SystemRandom()


class Process:
    """`python -m …`, started with the same words and the same configuration each time."""

    def __init__(
        self,
        name: str,
        words: list[str],
        config: dict[str, Any] | None,
        log: Path,
        *,
        tree: Path | None = None,
        environ: dict[str, str] | None = None,
    ):
        """`tree`, `environ`: where its code is; `None`: this one's."""
        self.name = name
        self.pids: list[int] = []
        self.config = config or {}
        self._words, self._log = words, log
        self._tree, self._environ = tree, environ
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Run until it listens."""
        with self._log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *self._words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # so that a child it leaves behind can be told
                cwd=self._tree,
                env=self._environ,
            )
        self.pids.append(self._process.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self.config).encode() if self.config else b"")
        self._process.stdin.close()
        async with asyncio.timeout(LIMIT_S):
            line = await self._process.stdout.readline()
        assert line, f"{self.name} did not start: {self._log.read_text()[-2000:]}"

    async def kill(self) -> None:
        """End it at once: SIGKILL."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def end(self) -> int:
        """Ask it to end; return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
            async with asyncio.timeout(LIMIT_S):
                await self._process.wait()
        assert self._process.returncode is not None
        return self._process.returncode

    async def close(self) -> None:
        """End it at once if it runs, and leave nothing open."""
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    def kill_if_running(self) -> None:
        """Leave nothing behind when a test failed."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


@dataclass
class Stack:
    """All processes of one cluster, by name."""

    http: str
    admin: str
    engines: dict[str, str]
    """Names of engine processes, by the ids that the coordinator gives them."""
    processes: dict[str, Process] = field(default_factory=dict)

    def named(self, *names: str) -> list[Process]:
        """Return some of the processes."""
        return [self.processes[name] for name in names]


@asynccontextmanager
async def stack(folder: Path, engines: int) -> AsyncIterator[Stack]:
    """Run a cluster that keeps its state in a folder."""
    ports = iter(free_ports(3 + 3 * engines))
    http, grpc, admin = (f"127.0.0.1:{next(ports)}" for _ in range(3))
    specs, found = [], Stack(f"http://{http}", f"http://{admin}", {})
    processes = []
    for n in range(engines):
        port, kv, replay = (next(ports) for _ in range(3))
        processes.append(
            Process(
                f"engine{n}",
                [
                    *("simulate.main", "--port", str(port), "--kv-port", str(kv)),
                    *("--replay-port", str(replay), "--seed", str(n)),
                    *("--blocks", "2000", "--max-model-len", "4096"),
                ],
                None,
                folder / f"engine{n}.log",
            )
        )
        found.engines[f"127.0.0.1:{port}"] = f"engine{n}"
        specs.append(
            {
                "url": f"http://127.0.0.1:{port}",
                "kv": f"tcp://127.0.0.1:{kv}",
                "replay": f"tcp://127.0.0.1:{replay}",
                "tokenizer": str(Path(simulate.__file__).parent / "model"),
            }
        )
    token = "between-agent-and-coordinator"
    coordinator = {
        "transport": "plaintext",
        "engines": specs,
        "http": http,
        "grpc": grpc,
        "admin": admin,
        "agent_token": token,
        "store": f"sqlite:{folder / 'state.db'}",
        "drain_s": 2.0,
    }
    agent = {
        "transport": "plaintext",
        "coordinators": [grpc],
        "token": token,
        "checkpoint_dir": str(folder / "checkpoints"),
    }
    for name, config in ("coordinator", coordinator), ("agent", agent):
        log = folder / f"{name}.log"
        processes.append(Process(name, [f"{name}.main", "--config", "-"], config, log))
    found.processes = {process.name: process for process in processes}
    try:
        await asyncio.gather(*(process.start() for process in processes))
        yield found
    finally:
        for process in processes:
            process.kill_if_running()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on and that are not handed out."""
    free: list[int] = []
    for port in _RNG.sample(range(20_000, 32_000), 50 + count):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        free.append(port)
        if len(free) == count:
            return free
    raise AssertionError("too few free ports")
