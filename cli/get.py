"""`lineside get`: what a coordinator knows of its engines, what it goes by and what it decided."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

from rich.console import Group
from rich.live import Live
from rich.text import Text

from cli import admin, members, pools
from cli.admin import Listener, ask
from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.explain import explained
from cli.shown import (
    NARROW,
    console,
    count,
    moment,
    number,
    pair,
    percent,
    printable,
    seconds,
    short,
    table,
    text,
)

WATCH_S = 1.0

LEGEND = "cached, TTFT: predicted / actual (actual TTFT: of streams alone)"
LIMIT = 20
LIMIT_MOST = 100_000

DEFAULT = "default"
"""The policy of requests that no policy of the operator's routes."""

UNREPORTED = 3
"""Answers in a row without a word on cached tokens: the engine does not report them."""

NO_DETAILS = (
    "its answers do not say what was cached, so predictions are not checked:"
    " start it with --enable-prompt-tokens-details"
)


def add_to(commands: Subcommands) -> None:
    """Add the command and what it gets."""
    get = commands.add_parser(
        "get",
        help="what a running coordinator knows, goes by and did",
        description="Ask a running coordinator what it knows and what it did.",
    )
    things = get.add_subparsers(title="things", dest="thing", metavar="THING", required=True)
    engines = things.add_parser(
        "engines",
        help="every engine: its cache, its load, how fresh both are",
        description="Show every engine: its cache, its load, and how fresh both are.",
    )
    engines.add_argument("--watch", action="store_true", help="again every second, until Ctrl-C")
    admin.add_options(engines)
    engines.set_defaults(run=lambda arguments: asyncio.run(_engines(arguments)))
    policies = things.add_parser(
        "policies",
        help="the policies in force, and whether the last edit was taken",
        description="Show the policies in force, and whether the last edit was taken.",
    )
    admin.add_options(policies)
    policies.set_defaults(run=lambda arguments: asyncio.run(_policies(arguments)))
    members.add_to(things)
    pools.add_to(things)
    decisions = things.add_parser(
        "decisions",
        help="recent decisions, or one of them explained",
        description="List recent decisions, newest first; with ID explain one of them.",
    )
    decisions.add_argument("id", nargs="?", metavar="ID", help="explain this one")
    decisions.add_argument("--tenant", metavar="NAME", help="of this tenant only")
    decisions.add_argument("--model", metavar="NAME", help="for this model only")
    decisions.add_argument("--refused", action="store_true", help="those that ended in a refusal")
    decisions.add_argument(
        "--limit", type=_limit, default=LIMIT, metavar="N", help=f"at most N (default {LIMIT})"
    )
    admin.add_options(decisions)
    decisions.set_defaults(run=lambda arguments: asyncio.run(_decisions(arguments)))


def _limit(said: str) -> int:
    if not (said.isascii() and said.isdigit() and 1 <= int(said) <= LIMIT_MOST):
        raise argparse.ArgumentTypeError(f"`{said}` is not a number from 1 to {LIMIT_MOST}")
    return int(said)


async def _engines(arguments: argparse.Namespace) -> int:
    whom = admin.listener(arguments)
    engines = await ask(whom, "/debug/engines", list)
    if arguments.json:
        _print_json(engines)
        while arguments.watch:
            await asyncio.sleep(WATCH_S)
            _print_json(await ask(whom, "/debug/engines", list))
    elif arguments.watch:
        await _watch(whom, engines)
    else:
        console().print(engines_shown(engines))
    return 0


async def _watch(whom: Listener, engines: list[Mapping[str, Any]]) -> None:
    """Show the table again and again. A coordinator that restarts is waited for."""
    here, shown = console(), engines_shown(engines)
    live = Live(shown, console=here, auto_refresh=False) if here.is_terminal else None
    with live or nullcontext():
        while True:
            if live is None:
                here.print(shown)
            else:
                live.update(shown, refresh=True)
            await asyncio.sleep(WATCH_S)
            try:
                shown = engines_shown(await ask(whom, "/debug/engines", list))
            except CouldNotRun as error:
                shown = Group(Text(f"{error}; trying again"))


def engines_shown(engines: Iterable[Mapping[str, Any]]) -> Group:
    """Return the table of engines, and below it what is wrong with each."""
    numbers = ("blocks", "worth", "queue", "in flight", "wait", "full", "ages")
    rows = table("engine", "model", "cache", *numbers, right=",".join(numbers), whole="engine")
    notes = []
    for engine in engines:
        rows.add_row(
            text(engine["id"]),
            short(engine.get("model")),
            _state(engine),
            count(engine.get("blocks")),
            count(engine.get("cache_worth_tokens")),
            f"{number(engine.get('waiting'))} + {number(engine.get('running'))}",
            number(engine.get("inflight")),
            seconds(engine.get("wait_s")),
            percent(engine.get("saturation")),
            pair(engine.get("age_s"), engine.get("load_age_s")),
        )
        if engine.get("reason"):
            notes.append(Text(f"{text(engine['id'])}: {text(engine['reason'])}"))
        if (engine.get("audit") or {}).get("unreported", 0) >= UNREPORTED:
            notes.append(Text(f"{text(engine['id'])}: {NO_DETAILS}"))
        if missing := engine.get("missing_metrics"):
            notes.append(Text(f"{text(engine['id'])}: metrics missing: {text(', '.join(missing))}"))
    if not rows.row_count:
        return Group(Text("the coordinator has no engines"))
    said = (
        "queue: waiting + running, by its own word; in flight: by ours; ages: of cache and load\n"
        "worth: cached tokens that requests read lately; full: KV cache, or share that waits"
    )
    return Group(rows, Text(said, style="dim"), *notes)


def _state(engine: Mapping[str, Any]) -> str:
    """Return one word on an engine, or two."""
    for state in ("away", "asleep"):
        if engine.get(state):
            return state
    said = text(engine.get("cache_state"))
    return f"{said}, mispredicted" if (engine.get("audit") or {}).get("mispredicted") else said


async def _policies(arguments: argparse.Namespace) -> int:
    said = await ask(admin.listener(arguments), "/debug/policies", dict)
    if arguments.json:
        _print_json(said)
    else:
        console().print(policies_shown(said))
    return 0


def policies_shown(said: Mapping[str, Any]) -> Group:
    """Return the table of policies, where they are from, and what is wrong with them."""
    rows = table("policy", "priority", "mode", "rules", right="priority")
    for policy in said["policies"]:
        rules = ", ".join(text(name) for name in policy["rules"])
        rows.add_row(text(policy["name"]), str(policy["priority"]), text(policy["mode"]), rules)
    notes = [f"revision {said['revision']}"]
    if said.get("source"):
        notes.append(f"from {text(said['source'])}")
    if said.get("rolled_back"):
        notes.append("rolled back: what is in the folder is not in force until it changes")
    if (cluster := said.get("cluster")) is not None:
        notes += _of_cluster(said, cluster)
    elif said.get("rejected"):
        notes.append("the last edit was rejected; the set before it is in force")
    notes += [_finding(finding) for finding in said.get("findings") or ()]
    table_or_word = rows if rows.row_count else Text("no policy is in force: the default rule is")
    return Group(table_or_word, *(Text(note) for note in notes))


def _of_cluster(said: Mapping[str, Any], cluster: Mapping[str, Any]) -> Iterable[str]:
    """Yield what is to be known of custom resources."""
    if said.get("rejected"):
        yield "some resources are wrong; of those the last good form is in force, or nothing"
    if cluster["away"]:
        yield text(f"the cluster cannot be read, so this may be old: {cluster['away']}")
    if cluster["missing"]:
        yield text(f"not installed: {', '.join(cluster['missing'])}")
    if cluster["status_problem"]:
        yield text(f"statuses are not written: {cluster['status_problem']}")


def _finding(finding: Mapping[str, Any]) -> str:
    place = ":".join(str(finding[key]) for key in ("file", "line", "col") if finding.get(key))
    level = "warning: " if finding.get("severity") == "warning" else ""
    return printable(f"{place}: {level}{finding['code']}: {finding['message']}")


async def _decisions(arguments: argparse.Namespace) -> int:
    whom = admin.listener(arguments)
    if arguments.id is not None:
        record = await ask(whom, f"/debug/decisions/{quote(arguments.id, safe='')}", dict)
        if arguments.json:
            _print_json(record)
        else:
            console().print(explained(record))
        return 0
    query = {"limit": str(arguments.limit)}
    query |= {"refused": "true"} if arguments.refused else {}
    for name in ("tenant", "model"):
        if (said := getattr(arguments, name)) is not None:
            query[name] = said
    records = await ask(whom, "/debug/decisions", list, query)
    if arguments.json:
        _print_json(records)
    else:
        here = console()
        shown = decisions_shown(records, here.width < NARROW)
        here.print(shown if records else "no decision matches")
    return 0


def decisions_shown(records: Iterable[Mapping[str, Any]], narrow: bool = False) -> Group:
    """Return the table of decisions. `narrow`: what a request is about is one column."""
    numbers = ("prompt", "cached", "TTFT")
    records = list(records)
    governed = any(record.get("policy") not in (None, DEFAULT) for record in records)
    about = ("model", *(("rule",) if governed else ()), "backend")
    columns = ("id", "UTC", *((", ".join(about),) if narrow else about), *numbers, "end")
    rows = table(*columns, right=",".join(numbers), whole="id,UTC")
    for record in records:
        outcome, refusal = record.get("outcome") or {}, record.get("refusal")
        end = text(outcome.get("end") or "in flight")
        said = (
            short(record.get("model")),
            *((_rule(record),) if governed else ()),
            text((record.get("decision") or {}).get("id")),
        )
        rows.add_row(
            text(record["id"]),
            moment(record.get("at"))[5:],  # without the year: only the latest are kept
            *(("\n".join(said),) if narrow else said),
            count(record.get("prompt_tokens")),
            _counts(outcome.get("predicted_cached_tokens"), outcome.get("cached_tokens")),
            pair(outcome.get("predicted_ttft_s"), outcome.get("ttft_s")),
            f"{refusal['status']} {text(refusal['reason'])}" if refusal else end,
        )
    return Group(rows, Text(LEGEND, style="dim"))


def _counts(predicted: float | None, actual: float | None) -> str:
    return f"{count(predicted)} / {count(actual)}"


def _rule(record: Mapping[str, Any]) -> str:
    """Return the policy, without its namespace, and the rule."""
    policy, rule = text(record.get("policy")), text(record.get("rule"))
    return policy if policy in (DEFAULT, text(None)) else f"{policy.rpartition('/')[2]}/{rule}"


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
