"""Child processes of `up` and `demo`: started, awaited, watched, and ended with their parent."""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

START_LIMIT_S = 30.0
"""A child that has not said where it listens by then could not run."""

STOP_LIMIT_S = 8.0
"""A child that has not ended this long after SIGTERM is killed."""


class CouldNotRun(Exception):
    """The command cannot do its work; `help` says what to do about it."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help


class Child:
    """One running child. `listening` holds the addresses that it printed."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path | None) -> None:
        self.name = name
        self.listening: dict[str, str] = {}
        self._process = process
        self._log = log

    async def ended(self) -> CouldNotRun:
        """Wait for the child to end by itself; return what to say about it."""
        code = await self._process.wait()
        return CouldNotRun(f"{self.name} ended with exit code {code}", self._last_words())

    async def read_listening(self) -> None:
        """Wait for the line that says where the child listens. Raises `CouldNotRun`."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_LIMIT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise CouldNotRun(
                f"{self.name} did not start within {START_LIMIT_S:.0f} s", self._last_words()
            ) from None
        if not line:
            raise await self.ended()
        try:
            self.listening = dict(json.loads(line)["listening"])
        except (ValueError, KeyError, TypeError):
            raise CouldNotRun(f"{self.name} did not say where it listens") from None

    async def stop(self) -> None:
        """End the child: SIGTERM, then SIGKILL."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _last_words(self) -> str:
        if self._log is None or not self._log.exists():
            return ""
        lines = self._log.read_text(errors="replace").splitlines()
        return f"the end of {self._log}:\n    " + "\n    ".join(lines[-6:]) if lines else ""


@asynccontextmanager
async def child(
    name: str,
    module: str,
    arguments: Sequence[str] = (),
    config: dict[str, Any] | None = None,
    log: Path | None = None,
) -> AsyncIterator[Child]:
    """Run `python -m module`, configured through its standard input; end it on the way out.

    Its logs go to `log`, or to this process's standard error. Raises `CouldNotRun`.
    """
    with _errors_to(log) as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            *(["--config", "-"] if config is not None else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=_environment(),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its children
            preexec_fn=_end_with_parent,
        )
    started = Child(name, process, log)
    try:
        assert process.stdin is not None
        if config is not None:
            process.stdin.write(json.dumps(config).encode())
        process.stdin.close()
        await started.read_listening()
        yield started
    finally:
        await started.stop()


def _environment() -> dict[str, str]:
    """Return ours without `LINESIDE_…`: what a child is to do stands in its configuration."""
    return {name: said for name, said in os.environ.items() if not name.startswith("LINESIDE_")}


@contextmanager
def _errors_to(log: Path | None) -> Iterator[IO[Any]]:
    if log is None:
        yield sys.stderr
        return
    with log.open("wb") as file:
        yield file


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies, so that a killed `up` leaves nothing behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


async def watch(*children: Child) -> None:
    """Wait until one of the children ends by itself. Raises `CouldNotRun`, always."""

    async def fail_with(each: Child) -> None:
        raise await each.ended()

    async with first_failure(), asyncio.TaskGroup() as tasks:
        for each in children:
            tasks.create_task(fail_with(each), name=f"watch {each.name}")


@asynccontextmanager
async def first_failure() -> AsyncIterator[None]:
    """Raise the first `CouldNotRun` of a task group by itself, for `main` to print."""
    try:
        yield
    except* CouldNotRun as failures:
        raise failures.exceptions[0] from None
