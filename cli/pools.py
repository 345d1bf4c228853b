"""`lineside get pools`: which engines are in which pool, and which providers there are."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from cli import admin
from cli.commands import Subcommands
from cli.shown import number, table, text


def add_to(things: Subcommands) -> None:
    """Add what `get` gets."""
    pools = things.add_parser(
        "pools",
        help="pools with their engines, and providers",
        description="Show each pool with its engines, and each provider.",
    )
    admin.add_options(pools)
    pools.set_defaults(
        run=lambda arguments: admin.show(arguments, "/debug/pools", list, pools_shown)
    )


def pools_shown(said: Iterable[Mapping[str, Any]]) -> Group:
    """Return the tables of pools and of providers."""
    pools = table("pool", "engines", "saturated", "which", right="engines")
    providers = table("provider", "type", "in flight", "state", "models", right="in flight")
    for each in said:
        if "engines" in each:
            engines = each["engines"]
            saturated = {True: "yes", False: "no"}.get(each["saturated"])
            pools.add_row(
                text(each["name"]), str(len(engines)), text(saturated), text(", ".join(engines))
            )
        else:
            providers.add_row(
                text(each["name"]),
                text(each["type"]),
                number(each["inflight"]),
                _state(each),
                text(", ".join(each["models"])),
            )
    shown = [pools] if not providers.row_count else [pools, Text(""), providers]
    return Group(*shown)


def _state(provider: Mapping[str, Any]) -> str:
    if provider.get("key_missing"):
        return text(f"no key: {provider['key_missing']}")
    pause = provider.get("cooldown")
    return "used" if pause is None else text(f"cools down: {pause.get('reason')}")
