"""`lineside get`: what a coordinator knows of its engines, what it goes by and what it decided."""

import argparse
import asyncio
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
    Fitting,
    console,
    count,
    moment,
    number,
    pair,
    percent,
    print_json,
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
        print_json(engines)
        while arguments.watch:
            await asyncio.sleep(WATCH_S)
            print_json(await ask(whom, "/debug/engines", list))
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
        while not here.quiet:  # as it is once nobody reads it any more
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
    numbers = ("queue", "in flight", "wait", "full")
    right = ",".join(more := ("blocks", "worth", *numbers, "ages"))
    wide = table("engine", "model", "cache", *more, right=right, whole="engine")
    narrow = table("engine, model", "cache, ages", "blocks", *numbers, right=right)
    notes = []
    for engine in engines:
        name, model, cache = text(engine["id"]), short(engine.get("model")), _state(engine)
        blocks = count(engine.get("blocks"))
        measured = (
            f"{number(engine.get('waiting'))} + {number(engine.get('running'))}",
            number(engine.get("inflight")),
            seconds(engine.get("wait_s")),
            percent(engine.get("saturation")),
        )
        worth = count(engine.get("cache_worth_tokens"))
        ages = pair(engine.get("age_s"), engine.get("load_age_s"))
        wide.add_row(name, model, cache, blocks, worth, *measured, ages)
        narrow.add_row(f"{name}\n{model}", f"{cache}\n{ages}", blocks, *measured)
        if engine.get("reason"):
            notes.append(Text(f"{text(engine['id'])}: {text(engine['reason'])}"))
        if (engine.get("audit") or {}).get("unreported", 0) >= UNREPORTED:
            notes.append(Text(f"{text(engine['id'])}: {NO_DETAILS}"))
        if missing := engine.get("missing_metrics"):
            notes.append(Text(f"{text(engine['id'])}: metrics missing: {text(', '.join(missing))}"))
    if not wide.row_count:
        return Group(Text("the coordinator has no engines"))
    said = (
        "queue: waiting + running, by its own word; in flight: by ours\n"
        "ages: of what is known of its cache and of its load\n"
        "full: KV cache, or share that waits; worth: cached tokens that were read lately"
    )
    return Group(Fitting(wide, narrow), Text(said, style="dim"), *notes)


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
        print_json(said)
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
    # A terminal folds what is too long for it; a place in a file stays one word.
    return Group(table_or_word, *(Text(note, no_wrap=True, overflow="ignore") for note in notes))


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
            print_json(record)
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
        print_json(records)
    else:
        console().print(decisions_shown(records) if records else "no decision matches")
    return 0


def decisions_shown(records: Iterable[Mapping[str, Any]]) -> Group:
    """Return the table of decisions."""
    numbers = ("prompt", "cached", "TTFT")
    records = list(records)
    governed = any(record.get("policy") not in (None, DEFAULT) for record in records)
    about = ("model", *(("rule",) if governed else ()), "backend")
    wide = table("id", "UTC", *about, *numbers, "end", right=",".join(numbers), whole="id,UTC")
    narrow = table("id, UTC", ", ".join(about), *numbers, "end", right=",".join(numbers))
    for record in records:
        outcome, refusal = record.get("outcome") or {}, record.get("refusal")
        end = text(outcome.get("end") or "in flight")
        said = (
            short(record.get("model")),
            *((_rule(record),) if governed else ()),
            text((record.get("decision") or {}).get("id")),
        )
        at = moment(record.get("at"))[5:]  # without the year: only the latest are kept
        measured = (
            count(record.get("prompt_tokens")),
            _counts(outcome.get("predicted_cached_tokens"), outcome.get("cached_tokens")),
            pair(outcome.get("predicted_ttft_s"), outcome.get("ttft_s")),
            f"{refusal['status']} {text(refusal['reason'])}" if refusal else end,
        )
        wide.add_row(text(record["id"]), at, *said, *measured)
        narrow.add_row(f"{text(record['id'])}\n{at}", "\n".join(said), *measured)
    return Group(Fitting(wide, narrow), Text(LEGEND, style="dim"))


def _counts(predicted: float | None, actual: float | None) -> str:
    return f"{count(predicted)} / {count(actual)}"


def _rule(record: Mapping[str, Any]) -> str:
    """Return the policy, without its namespace, and the rule."""
    policy, rule = text(record.get("policy")), text(record.get("rule"))
    return policy if policy in (DEFAULT, text(None)) else f"{policy.rpartition('/')[2]}/{rule}"
