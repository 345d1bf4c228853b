"""Child processes of `up` and `demo`: started, awaited, watched, and ended with their parent.

`keep` starts one again that has died, `watch` gives up with the first.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

START_LIMIT_S = 30.0
"""A child that has not said where it listens by then could not run."""

STOP_LIMIT_S = 8.0
"""A child that has not ended this long after SIGTERM is killed."""

PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Before a child that died is started again: by how often it has died within `WITHIN_S`."""

DEATHS, WITHIN_S = 5, 60.0
"""A child that dies this often within this time is not started again."""


class CouldNotRun(Exception):
    """The command cannot do its work; `help` says what to do about it."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help


class Child:
    """One child, which can be started again. `listening` holds the addresses that it printed."""

    def __init__(
        self, name: str, words: Sequence[str], config: dict[str, Any] | None, log: Path | None
    ) -> None:
        self.name = name
        self.listening: dict[str, str] = {}
        self._words = words
        self._config = config
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process that runs, or ran last."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Run until it listens, where it did before if it ran already. Raises `CouldNotRun`."""
        with _errors_to(self._log, again=self._process is not None) as errors:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", *self._words),
                *(["--config", "-"] if self._config is not None else []),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its children
                preexec_fn=_end_with_parent,
            )
        assert process.stdin is not None
        if self._config is not None:
            process.stdin.write(json.dumps({**self._config, **self.listening}).encode())
        process.stdin.close()
        await self._read_listening(process)

    async def ended(self) -> CouldNotRun:
        """Wait for the child to end by itself; return what to say about it."""
        assert self._process is not None
        code = await self._process.wait()
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal(-code)}"
        return CouldNotRun(f"{self.name} {how}", self._last_words())

    async def stop(self) -> None:
        """End the child: SIGTERM, then SIGKILL."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _read_listening(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the line that says where the child listens. Raises `CouldNotRun`."""
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_LIMIT_S):
                line = await process.stdout.readline()
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
    started = Child(name, [module, *arguments], config, log)
    try:
        await started.start()
        yield started
    finally:
        await started.stop()


def _environment() -> dict[str, str]:
    """Return ours without `LINESIDE_…`: what a child is to do stands in its configuration."""
    return {name: said for name, said in os.environ.items() if not name.startswith("LINESIDE_")}


@contextmanager
def _errors_to(log: Path | None, *, again: bool) -> Iterator[IO[Any]]:
    if log is None:
        yield sys.stderr
        return
    with log.open("ab" if again else "wb") as file:
        yield file


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies, so that a killed `up` leaves nothing behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


async def keep(each: Child, meanwhile: str, say: Callable[[str], None]) -> None:
    """Start a child again whenever it ends by itself. Raises `CouldNotRun` when it keeps dying.

    `meanwhile` tells people what holds until it runs again.
    """
    now = asyncio.get_running_loop().time
    deaths: deque[float] = deque(maxlen=DEATHS)
    why = await each.ended()
    while True:
        deaths.append(now())
        if len(deaths) == DEATHS and deaths[-1] - deaths[0] < WITHIN_S:
            raise CouldNotRun(f"{why}, for the {DEATHS}th time within a minute", why.help)
        lately = sum(deaths[-1] - at < WITHIN_S for at in deaths)
        pause_s = PAUSES_S[lately - 1]
        say(f"{why}; it is started again in {pause_s:g} s, {meanwhile}")
        await asyncio.sleep(pause_s)
        try:
            await each.start()
        except CouldNotRun as failed:
            await each.stop()
            why = failed
        else:
            say(f"{each.name} runs again")
            why = await each.ended()


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
