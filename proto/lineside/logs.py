"""Structured logs: one JSON object a line on standard error, no content, no secrets.

`log = logs.get("agent.report")`, then `log.info("stream lost", coordinator=..., reason=...)`.
Fields are for values from closed lists, ids and numbers: never prompts, token ids or keys.
"""

import json
import logging
import sys
import time
import traceback
from typing import Any


class Log:
    """A named logger that takes fields as keyword arguments."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, **fields: object) -> None:
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: object) -> None:
        self._logger.warning(event, extra={"fields": fields})

    def fault(self, event: str, **fields: object) -> None:
        """Log where an unexpected exception came from, inside `except`; never what it says."""
        self._logger.exception(event, extra={"fields": fields})


def get(name: str) -> Log:
    """Return the logger of a module."""
    return Log(name)


def setup(level: str = "info") -> None:
    """Send this process's logs to standard error. Called once, in `main`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1]:
            line["fault"] = _places(record.exc_info[1])
        return json.dumps(line, default=str)


def _places(error: BaseException) -> list[str]:
    """Return the exception's class and its frames, innermost last.

    Its message may quote what a client sent, so it is left out; so are the messages of its causes.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    cause = error.__cause__ or error.__context__
    before = [*_places(cause), "which led to"] if cause else []
    return [*before, *lines, type(error).__name__]
