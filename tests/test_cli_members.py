"""What `lineside get members` prints."""

import io
from typing import Any

from rich.console import Console

from cli.members import members_shown

AT = 1_700_000_000.0
LISTENING = {"http": "10.0.0.1:80", "grpc": "10.0.0.1:9001", "admin": "10.0.0.1:9090"}
SAID: dict[str, Any] = {
    "me": "c-1",
    "coordinators": [
        {"id": "c-1", "version": "0.1.0", "since": AT - 90, "listening": LISTENING},
        {"id": "c-2", "version": "0.1.0", "since": AT - 5, "listening": {}},
    ],
    "agents": [{"node": "n", "coordinators": ["c-1"], "missing": ["c-2"]}],
}
BUSY = {"outstanding": 3, "queued": 2, "queued_tokens": 1000, "wait_s": 0.5}


def shown(said: dict[str, Any]) -> list[list[str]]:
    out = io.StringIO()
    Console(file=out, width=160).print(members_shown(said, AT))
    return [line.split() for line in out.getvalue().splitlines() if line.strip()]


def test_members_and_whom_they_miss() -> None:
    assert shown(SAID)[1:] == [
        [
            "c-1",
            "(this",
            "one)",
            "0.1.0",
            "2023-11-14",
            "22:11:50",
            "90.0",
            "s",
            *LISTENING.values(),
        ],
        ["c-2", "0.1.0", "2023-11-14", "22:13:15", "5.0", "s", "-", "-", "-"],
        ["agent", "of", "node", "connected", "to", "misses"],
        ["n", "c-1", "c-2"],
        ["nothing", "is", "in", "flight"],
    ]


def test_what_each_has_in_flight_with_its_age() -> None:
    inflight = [
        {"coordinator": "c-1", "engine": "e:1", **BUSY, "age_s": 0.0, "counts": True},
        {"coordinator": "c-2", "engine": "e:1", **BUSY, "age_s": 2.5, "counts": False},
    ]
    assert shown(SAID | {"inflight": inflight})[-2:] == [
        ["c-1", "e:1", "3", "2", "1000", "500", "ms", "0", "ms"],
        ["c-2", "e:1", "3", "2", "1000", "500", "ms", "2.5", "s", "(too", "old", "to", "count)"],
    ]


def test_a_store_that_is_away_is_told() -> None:
    assert "so this may be old: gone" in " ".join(shown(SAID | {"store_away": "gone"})[-1])
