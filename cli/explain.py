"""One decision, so that someone on call can follow it: candidates, tries, outcome.

Takes the JSON of `/debug/decisions/{id}` or `/debug/route`; asks nobody.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from cli.shown import Fitting, moment, number, seconds, table, text

Json: TypeAlias = Mapping[str, Any]

ANSWERED = ("finished", "rejected", "unfollowed")
"""Ends of requests that got an answer, as far as anybody knows."""

LEGEND = """\
overlap: cached by the index's word, + what requests in flight will have added
wait: predicted queue before it; own: its own prefill; TTFT: both together
cost: what is minimised, TTFT and the delay of others; ages: of cache and load"""


def explained(record: Json) -> Group:
    """Return the whole story of one request."""
    parts: list[RenderableType] = [Text(line) for line in _head(record)]
    candidates = record.get("candidates") or []
    if candidates:
        parts += [Text(), _candidates(record, candidates)]
        parts += [Text(line) for line in _notes(candidates)]
        parts.append(Text(LEGEND, style="dim"))
    if _is_dry(record):
        parts.append(Text("\ndry run: nothing was sent, accounted or kept"))
    else:
        parts += [Text(line) for line in _attempts(record)]
        parts += [Text(), *_outcome(record.get("outcome") or {})]
    return Group(*parts)


def _is_dry(record: Json) -> bool:
    return record.get("request_id") in (None, "dry-run")


def _head(record: Json) -> Iterator[str]:
    if not _is_dry(record):
        yield (
            f"decision {text(record.get('id'))}  {moment(record.get('at'))} UTC"
            f"  request {text(record.get('request_id'))}"
        )
    streamed = ", streamed" if record.get("stream") else ""
    yield (
        f"{text(record.get('api'))} for model `{text(record.get('model'))}`{streamed},"
        f" tenant {text(record.get('tenant'))}"
    )
    if record.get("policy"):
        yield ", ".join(
            f"{name} {text(record[name])}"
            for name in ("policy", "rule", "stage")
            if record.get(name)
        )
    yield from _said(record)
    if record.get("tokens"):
        yield _tokens(record)
    yield _verdict(record)


def _said(record: Json) -> Iterator[str]:
    """Say what else policies did: guards, what they did not know, rewrites, shadows."""
    if record.get("guards"):
        yield f"guards that held: {', '.join(map(text, record['guards']))}"
    if record.get("unknown"):
        yield f"not known: {', '.join(map(text, record['unknown']))}"
    asked = record.get("set") or {}
    if rewritten := [name for name, value in asked.items() if value]:
        yield f"rewritten: {', '.join(map(text, rewritten))}"
    for policy, sentence in (record.get("shadow") or {}).items():
        yield f"shadow {text(policy)}: {text(sentence)}"


def _tokens(record: Json) -> str:
    state, why = text(record["tokens"]), record.get("tokens_reason")
    how = f"tokens {state}" + (f" ({text(why)})" if why else "")
    count = record.get("prompt_tokens")
    return f"{how}: prompt of {count}" if count is not None else f"{how}: prompt length not known"


def _verdict(record: Json) -> str:
    decision, refusal = record.get("decision"), record.get("refusal")
    if decision is None:
        if refusal is None:
            return "not decided yet"
        return f"refused: {refusal['status']} {text(refusal['reason'])}: {text(refusal['message'])}"
    ranked = [c for c in record.get("candidates") or () if not c.get("dropped_by")]
    chosen = text(decision["id"])
    if not ranked or ranked[0]["id"] != decision["id"]:
        line = f"served by {chosen}, a fallback: the tries before it failed"
    elif len(ranked) == 1:
        line = f"chosen: {chosen}, the only candidate"
    else:
        line = (
            f"chosen: {chosen}, the lowest cost of {len(ranked)}: {seconds(ranked[0].get('cost'))};"
            f" next {text(ranked[1]['id'])}: {seconds(ranked[1].get('cost'))}"
        )
    return (
        f"{line}\nfailed: {text(refusal['reason'])}: {text(refusal['message'])}"
        if refusal
        else line
    )


def _candidates(record: Json, candidates: list[Json]) -> Fitting:
    numbers = ("overlap", "uncached", "in flight", "wait", "own", "TTFT", "cost")
    right = ",".join((*numbers, "ages"))
    wide = table("", "engine", *numbers, "ages", "cache", right=right)
    narrow = table("", "engine, cache, ages", *numbers, right=right)
    chosen = (record.get("decision") or {}).get("id")
    for candidate in candidates:
        dropped = bool(candidate.get("dropped_by"))
        ages = candidate.get("ages") or {}
        measured = (
            _overlap(candidate.get("overlap_tokens"), candidate),
            number(candidate.get("uncached_tokens")),
            number(candidate.get("outstanding")),
            *(seconds(candidate.get(f"{part}_s")) for part in ("wait", "own", "predicted_ttft")),
            seconds(candidate.get("cost")),
        )
        mark = ">" if candidate["id"] == chosen else "x" if dropped else ""
        name, cache = text(candidate["id"]), text(candidate.get("cache_state"))
        shown = ("-",) * len(measured) if dropped else measured
        age = f"{seconds(ages.get('cache_s'))} / {seconds(ages.get('load_s'))}"
        wide.add_row(mark, name, *shown, age, cache)
        narrow.add_row(mark, f"{name}\n{cache}, {age}", *shown)
    return Fitting(wide, narrow)


def _overlap(indexed: Any, holder: Json) -> str:
    """Write what the index says, and what is on its way beyond it."""
    ahead = holder.get("speculative_tokens")
    return f"{number(indexed)} +{ahead}" if ahead else number(indexed)


def _notes(candidates: list[Json]) -> Iterator[str]:
    """Say why each was dropped, and why a cache is not as live as it should be."""
    for candidate in candidates:
        engine, why = text(candidate["id"]), candidate.get("reason")
        if dropped := candidate.get("dropped_by"):
            yield f"{engine} dropped by {text(dropped)}" + (f": {text(why)}" if why else "")
        elif why:
            yield f"{engine} cache is {text(candidate.get('cache_state'))}: {text(why)}"


def _attempts(record: Json) -> Iterator[str]:
    failed = record.get("attempts") or []
    if failed:
        yield "\ntries"
    for count, attempt in enumerate(failed, start=1):
        yield (
            f"  {count}. {text(attempt['engine'])} failed: {text(attempt['reason'])}"
            f" (another try: {text(attempt['repeat'])})"
        )
    outcome = record.get("outcome") or {}
    if failed and record.get("decision") and outcome.get("end") in ANSWERED:
        yield f"  {len(failed) + 1}. {text(record['decision']['id'])} answered"


def _outcome(outcome: Json) -> Iterator[RenderableType]:
    if outcome.get("end") is None:
        yield Text("outcome: in flight")
        return
    parts = [text(outcome["end"])]
    parts += [f"status {outcome['status']}"] if outcome.get("status") is not None else []
    parts += [f"finish {text(outcome['finish'])}"] if outcome.get("finish") else []
    if outcome.get("duration_s") is not None:
        parts.append(f"after {seconds(outcome['duration_s'])}")
    if outcome.get("completion_tokens") is not None:
        parts.append(f"{outcome['completion_tokens']} tokens out")
    yield Text("outcome: " + ", ".join(parts))
    if outcome["end"] == "refused":
        return
    numbers = ("predicted", "actual", "difference")
    rows = table("", *numbers, right=",".join(numbers))
    guess, fact = outcome.get("predicted_ttft_s"), outcome.get("ttft_s")
    rows.add_row(
        "time to first token", seconds(guess), seconds(fact), _difference(guess, fact, seconds)
    )
    guess, fact = outcome.get("predicted_cached_tokens"), outcome.get("cached_tokens")
    rows.add_row(
        "cached tokens", _overlap(guess, outcome), number(fact), _difference(guess, fact, number)
    )
    yield rows


def _difference(guess: Any, fact: Any, show: Any) -> str:
    if guess is None or fact is None:
        return "-"
    return ("+" if fact > guess else "") + str(show(fact - guess))
