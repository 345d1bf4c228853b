"""`lineside policy explain`: one request on one state of a cluster, for a person to follow."""

import argparse
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.commands import Subcommands
from cli.resources import CLEAN, FINDINGS, Given, add_files, given, one, tell
from cli.shown import console, number, percent, print_json, seconds, table, text
from lineside.findings import Finding, Place
from policies.cases import RequestSpec, TagState, read_request, read_state
from policies.model import Measure
from policies.state import ClusterState, cluster_of
from policies.trial import Trial, tried
from policies.verdict import DEFAULT, Chosen, Denied

DESCRIPTION = """\
Say what policies make of a request on a cluster: every candidate, what dropped
it, how the others rank, the winner and its fallbacks.

--request holds JSON or YAML: {model, tenant, api, stream, inputTokens, tags,
headers, conversation}, a client's body, or {path, headers, body}. --state holds
a ClusterState (docs/policies.md), or what `get engines --json` prints; else
the one among FILES counts.

Exit codes: 0 a backend was chosen, 1 refused, 2 usage, 3 could not run."""

TAG_STATES = ("present", "absent", "unknown")

COLUMNS = (
    ("queued", Measure.QUEUED_PROMPTS, number),
    ("running", Measure.RUNNING_PROMPTS, number),
    ("TTFT", Measure.PREDICTED_TTFT, seconds),
    ("E2E", Measure.PREDICTED_E2E, seconds),
    ("uncached", Measure.UNCACHED_TOKENS, number),
    ("cached", Measure.CACHED_TOKENS, number),
    ("KV", Measure.KV_CACHE_USAGE, percent),
    ("GPU", Measure.GPU_UTILIZATION, percent),
    ("cost", Measure.COST, number),
    ("age", Measure.FRESHNESS, seconds),
)
"""Those are shown of which something is known, or that say that nothing is queued."""

NO_STATE = """\
of the cluster only what FILES hold is known here: --state takes a ClusterState,
or what `lineside get engines --json` prints"""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "explain", help="what policies make of a request, and why", description=DESCRIPTION
    )
    add_files(command, "policies and other resources")
    command.add_argument("--request", required=True, metavar="FILE", help="the request")
    command.add_argument("--state", metavar="FILE", help="the cluster")
    command.add_argument(
        "--tag",
        action="append",
        default=[],
        type=_tag,
        metavar="NAME[=STATE]",
        help="a tag of it: present (default), absent, unknown",
    )
    command.add_argument("--tenant", metavar="NAME", help="its tenant")
    command.set_defaults(run=_explain)


def _tag(said: str) -> tuple[str, TagState]:
    name, _, state = said.partition("=")
    for known in TAG_STATES:
        if name and (state or "present") == known:
            return name, known  # type: ignore[return-value]
    raise argparse.ArgumentTypeError(f"write NAME or NAME=STATE with one of {TAG_STATES}")


def _explain(arguments: argparse.Namespace) -> int:
    said = given(arguments.files)
    state = _state(said, arguments.state)
    source, document = one(arguments.request)
    request = read_request(document, source)
    findings = [*said.findings]
    findings += [each for part in (state, request) if isinstance(part, list) for each in part]
    if findings or isinstance(state, list) or isinstance(request, list):
        return tell(findings, arguments.json)
    trial = tried(
        said.policies, cluster_of(said.resources, state), _with(request, arguments).facts()
    )
    if arguments.json:
        print_json(trial.to_json())
    else:
        console().print(explained(trial))
        if trial.refusal and arguments.state is None and not said.states:
            console().print(NO_STATE)
    return FINDINGS if trial.refusal else CLEAN


def _state(said: Given, name: str | None) -> ClusterState | list[Finding]:
    if name is not None:
        source, document = one(name)
        return read_state(document, source)
    if len(said.states) > 1:
        return [Finding(Place("FILES"), "two-states", "there is more than one ClusterState")]
    return said.states[0] if said.states else ClusterState()


def _with(request: RequestSpec, arguments: argparse.Namespace) -> RequestSpec:
    """Return the request as options have it."""
    return RequestSpec(
        model=request.model,
        tenant=request.tenant if arguments.tenant is None else arguments.tenant,
        api=request.api,
        stream=request.stream,
        input_tokens=request.input_tokens,
        tags={**request.tags, **dict(arguments.tag)},
        headers=request.headers,
        conversation=request.conversation,
    )


def explained(trial: Trial) -> Group:
    """Return the whole story of one request."""
    parts: list[RenderableType] = [Text(line) for line in _head(trial)]
    if trial.candidates:
        parts += [Text(), _candidates(trial)]
    parts += [Text(line) for line in _notes(trial)]
    return Group(*parts)


def _head(trial: Trial) -> Iterator[str]:
    facts = trial.facts
    tags = ", ".join(f"{name} {truth.value}" for name, truth in facts.tags.items())
    yield (
        f"{text(facts.api)} for model `{text(facts.model)}`"
        f"{', streamed' if facts.stream else ''}, tenant {text(facts.tenant)}"
        f", tags {text(tags)}, input tokens {number(facts.input_tokens)}"
    )
    if trial.refusal is not None:
        status, message, source = trial.refusal
        yield f"refused: {status} by {_line(source)}: {_line(message)}"
        return
    winner, *others = (text(each.target.id) for each in trial.ranked)
    source = trial.verdict.source
    is_default = source.policy == DEFAULT.policy
    yield f"routed by {'the default route: no rule does' if is_default else _line(source)}"
    if trial.by_chance:
        among = ", ".join(dict.fromkeys(text(each.id) for each in trial.winners))
        yield f"chosen: by chance among {among}; shown: {winner}"
    else:
        yield f"chosen: {winner}"
    yield f"fallbacks: {', '.join(others) if others else 'none'}"


def _candidates(trial: Trial) -> Table:
    shown = [
        (name, measure, show)
        for name, measure, show in COLUMNS
        if any(trial.cluster.value(each.place, measure) for each in trial.candidates)
    ]
    numbers = [name for name, _, _ in shown]
    rows = table(
        "", "backend", "model", "type", *numbers, "what became of it", right=",".join(numbers)
    )
    rank = 0
    for each in trial.candidates:
        if each.stage:
            rank += 1
            end = f"{each.stage}: {'winner' if rank == 1 else f'fallback {rank - 1}'}"
        else:
            by = f"dropped by {_line(each.dropped_by)}: " if each.dropped_by else ""
            end = f"{by}{_line(each.reason)}"
        rows.add_row(
            ">" if rank == 1 and each.stage else "" if each.stage else "x",
            text(each.target.id),
            text(each.target.model),
            each.target.type.value,
            *(show(trial.cluster.value(each.place, measure)) for _, measure, show in shown),
            end,
        )
    return rows


def _notes(trial: Trial) -> Iterator[str]:
    verdict = trial.verdict
    if isinstance(verdict, Denied):
        return
    if verdict.guards:
        yield f"guards that hold: {', '.join(map(_line, verdict.guards))}"
    if verdict.unknown:
        yield f"not known where a condition asks: {', '.join(map(_line, verdict.unknown))}"
    if isinstance(verdict, Chosen) and verdict.set is not None:
        names = [name for name in verdict.set.__struct_fields__ if getattr(verdict.set, name)]
        yield f"rewritten: {', '.join(names)}"
    for policy, sentence in verdict.shadow.items():
        yield f"shadow {_line(policy)}: {_line(sentence)}"


def _line(value: object) -> str:
    """Return a whole sentence, safe to print."""
    return "".join(c if c.isprintable() else "?" for c in str(value))
