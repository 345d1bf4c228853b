"""Listens to what gRPC's core writes to standard error: it says nowhere else why TLS fails.

Standard error of the process becomes a pipe; Python's own writes (logs, tracebacks) go past it. Of
gRPC's lines those that inform, or are told in other words, are dropped; all others are passed on.
"""

import faulthandler
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

Hear: TypeAlias = Callable[[str], bool]
"""Takes a line; returns whether it is told in other words, and may be dropped."""

LINE_BYTES = 4096
"""Of one line that is heard; the rest of a longer one is another line."""

_INFORMS = re.compile(rb"I\d{4} [\d:.]+ ")


class CoreLog:
    """The tap. `hear` is what listens; it is called on a thread of its own."""

    def __init__(self) -> None:
        self.hear: Hear = lambda _: False

    def open(self) -> None:
        """Put the tap in, once in a process and before its first use of gRPC."""
        os.environ.setdefault("GRPC_VERBOSITY", "INFO")
        kept = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        # What Python writes is not ours to delay: a dying process must get its last words out.
        sys.stderr = open(kept, "w", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        faulthandler.enable(sys.stderr)
        thread = threading.Thread(target=self._read, args=(reading, kept), name="gRPC's log")
        thread.daemon = True  # it ends with the process
        thread.start()

    def _read(self, reading: int, kept: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            while line := lines.readline(LINE_BYTES):
                is_told = self.hear(line.decode(errors="replace"))
                if not is_told and not _INFORMS.match(line):
                    with suppress(OSError):  # nobody reads it; whoever writes must not wait for it
                        os.write(kept, line)
