"""Listens to what gRPC's core writes to standard error: it says nowhere else why TLS fails.

Standard error of the process becomes a pipe; Python's own writes (logs, tracebacks) go past it. Of
gRPC's lines those that inform, or are told in other words, are dropped; its others become lines of
our log. What is no line of gRPC's is passed on.
"""

import faulthandler
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from lineside import logs

Hear: TypeAlias = Callable[[str], bool]
"""Takes a line; returns whether it is told in other words, and may be dropped."""

LINE_BYTES = 4096
"""Of one line that is heard; the rest of a longer one is another line."""

_OF_GRPC = re.compile(rb"([IWEF])\d{4} [\d:.]+ +\d+ ([^ ]+)\] (.*)")

_BEFORE = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
"""Precedes the first of gRPC's lines, and means nothing to whoever reads them here."""

log = logs.get("lineside.core_log")


def silence() -> None:
    """Let nothing but Python write to standard error, until the process ends.

    For commands that say in words why they cannot connect. gRPC reads its variables when it is
    imported, which is too early for a command to set them.
    """
    _python_apart()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _python_apart() -> int:
    """Have Python write past descriptor 2, which others write to; return where it writes."""
    kept = os.dup(2)
    # What Python writes is not ours to delay: a dying process must get its last words out.
    sys.stderr = open(kept, "w", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    return kept


class CoreLog:
    """The tap. `hear` is what listens; it is called on a thread of its own."""

    def __init__(self) -> None:
        self.hear: Hear = lambda _: False

    def open(self) -> None:
        """Put the tap in, once in a process and before its first use of gRPC."""
        os.environ.setdefault("GRPC_VERBOSITY", "INFO")
        kept = _python_apart()
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        thread = threading.Thread(target=self._read, args=(reading, kept), name="gRPC's log")
        thread.daemon = True  # it ends with the process
        thread.start()

    def _read(self, reading: int, kept: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            while line := lines.readline(LINE_BYTES):
                if self.hear(line.decode(errors="replace")) or line.startswith(_BEFORE):
                    continue
                if (found := _OF_GRPC.match(line)) is None:
                    with suppress(OSError):  # nobody reads it; whoever writes must not wait for it
                        os.write(kept, line)
                elif found[1] != b"I":
                    place, text = (part.decode(errors="replace") for part in found.group(2, 3))
                    log.warning("gRPC warns", place=place, text=text)
