"""`lineside get members`: who belongs to the cluster, as one coordinator sees it."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cli import admin
from cli.commands import Subcommands
from cli.shown import Fitting, moment, number, seconds, table, text

LISTENERS = ("http", "grpc", "admin")


def add_to(things: Subcommands) -> None:
    """Add what `get` gets."""
    members = things.add_parser(
        "members",
        help="coordinators and agents, and who misses whom",
        description="Show the coordinators that share a store, and whom each agent reports to.",
    )
    admin.add_options(members)
    members.set_defaults(
        run=lambda arguments: admin.show(
            arguments, "/debug/members", dict, lambda said: members_shown(said, time.time())
        )
    )


def members_shown(said: Mapping[str, Any], now: float) -> Group:
    """Return the tables of coordinators and of agents."""
    parts: list[Any] = []
    wide = table("coordinator", "release", "up since (UTC)", "up", *LISTENERS)
    narrow = table("coordinator", "release", "up since (UTC)", "listens")
    for each in said["coordinators"]:
        name = text(each["id"]) + (" (this one)" if each["id"] == said["me"] else "")
        release, since = text(each["version"]), moment(each["since"])
        up = seconds(max(0.0, now - each["since"]))
        listening = [text(each["listening"].get(door)) for door in LISTENERS]
        wide.add_row(name, release, since, up, *listening)
        doors = (f"{door:5} {at}" for door, at in zip(LISTENERS, listening, strict=True))
        narrow.add_row(name, release, f"{since}\n({up})", "\n".join(doors))
    shown = Fitting(wide, narrow)
    parts.append(shown if wide.row_count else Text("no coordinator is known"))
    agents = table("agent of node", "connected to", "misses")
    for each in said["agents"]:
        agents.add_row(
            text(each["node"]),
            text(", ".join(each["coordinators"])),
            text(", ".join(each["missing"])),
        )
    parts += [Text(""), agents if agents.row_count else Text("no agent is connected")]
    for chore, leader in sorted(said.get("leaders", {}).items()):
        parts.append(Text(f"who may {chore}: {text(leader or 'nobody yet')}"))
    parts += [Text(""), _inflight_shown(said)]
    if said.get("store_away"):
        parts.append(Text(f"the store is away, so this may be old: {text(said['store_away'])}"))
    return Group(*parts)


def _inflight_shown(said: Mapping[str, Any]) -> RenderableType:
    """Return what each coordinator says it has in flight on each engine."""
    inflight = table(
        "in flight by", "on engine", "requests", "queued", "tokens", "wait", "said ago"
    )
    for each in said.get("inflight", ()):
        mark = "" if each["counts"] else " (too old to count)"
        inflight.add_row(
            text(each["coordinator"]),
            text(each["engine"]),
            number(each["outstanding"]),
            number(each["queued"]),
            number(each["queued_tokens"]),
            seconds(each["wait_s"]),
            seconds(each["age_s"]) + mark,
        )
    return inflight if inflight.row_count else Text("nothing is in flight")
