"""`lineside policy prove`: whether a tag keeps requests away from some backends."""

import argparse
import json
from typing import Any

from cli.commands import Subcommands
from cli.resources import CLEAN, FINDINGS, add_files, given, tell
from cli.shown import print_json
from policies.checks.proofs import Claim, Malformed, parse_never, vacuous
from policies.confirm import Reached
from policies.facts import RequestFacts, Target
from policies.model import BackendSelector, BackendType
from policies.prove import Counterexample, Holds, Proof, Undecided, prove
from policies.state import FIELDS_OF_MEASURES, offline_inventory

DESCRIPTION = """\
Say whether all policies together keep requests with a tag from some backends,
whatever else is so: every rule, stage, fallback, and the default route.

Answers `holds`, a counterexample (a request and a cluster, which `explain`
takes), or `undecided`.

Exit codes: 0 holds, 1 counterexample, undecided, findings, or it holds of a
backend that there is not; 2 usage, 3 could not run."""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "prove", help="whether a tag keeps requests from backends", description=DESCRIPTION
    )
    command.add_argument("--tag", required=True, metavar="NAME", help="the requests' tag")
    command.add_argument(
        "--never",
        required=True,
        type=selector,
        metavar="TYPE[:NAME]",
        help="what must not get them: Provider, Local, Provider:bedrock",
    )
    add_files(command, "policies; with pools and providers, of this cluster only")
    command.set_defaults(run=_prove)


def selector(text: str) -> BackendSelector:
    """Read which backends are meant, as claims in policies say it."""
    never = parse_never(text)
    if isinstance(never, Malformed):
        raise argparse.ArgumentTypeError(f"{never.message}; {never.help}")
    return never


def _prove(arguments: argparse.Namespace) -> int:
    said = given(arguments.files)
    if said.findings:
        return tell(said.findings, arguments.json)
    inventory = offline_inventory(said.resources)
    proof = prove(said.policies, arguments.tag, arguments.never, inventory)
    claim = Claim(arguments.tag, arguments.never)
    doubts = [
        "; ".join(filter(None, (found.message, found.help)))
        for found in vacuous(claim, said.policies, inventory)
    ]
    if arguments.json:
        print_json(proof_json(proof) | {"doubts": doubts})
    else:
        print("\n".join(told(proof, arguments.tag, arguments.never)))
        for doubt in doubts:
            print(f"doubt: {doubt}")
    # What holds because a name is mistyped is no proof that a pipeline may go by.
    is_proved = isinstance(proof, Holds) and not (doubts and proof.targets == 0)
    return CLEAN if is_proved else FINDINGS


def told(proof: Proof, tag: str, never: BackendSelector) -> list[str]:
    """Say a proof in lines."""
    whom = never.type.value if never.type else "any backend"
    whom += f" `{never.names[0]}`" if never.names else ""
    match proof:
        case Holds(0):
            return [f"holds: this cluster has no {whom}"]
        case Holds(_, unknown):
            lines = [f"holds: no request with tag `{tag}` can be sent to {whom}"]
            if unknown is not None:
                first, *rest = told(unknown, tag, never)
                lines += [f"while nobody knows whether it has the tag: {first}", *rest]
            return lines
        case Counterexample():
            shown = counterexample_json(proof)
            parts = (f"{name}: {json.dumps(shown[name])}" for name in ("request", "state"))
            return [f"counterexample: {proof.sentence}", *parts]
        case Undecided(why):
            return [f"undecided: {why}"]


def proof_json(proof: Proof) -> dict[str, Any]:
    """Return a proof for machines; `holds` is null where it is undecided."""
    shown: dict[str, Any] = {"holds": None, "counterexample": None, "undecided": None}
    match proof:
        case Holds(targets, unknown):
            shown |= {"holds": True, "targets": targets}
            shown["while_unknown"] = None if unknown is None else proof_json(unknown)
        case Counterexample():
            shown |= {"holds": False, "counterexample": counterexample_json(proof)}
        case Undecided(why):
            shown["undecided"] = why
    return shown


def counterexample_json(proof: Counterexample) -> dict[str, Any]:
    """Return a request and a state, as `explain` takes them, and where the request can go."""
    found = proof.reached
    target = found.target
    return {
        "sentence": proof.sentence,
        "backend": {"id": target.id, "model": target.model, "type": target.type.value},
        "policy": found.source.policy,
        "rule": found.source.rule,
        "stage": found.source.part,
        "fallback": found.position,
        "request": _request(found.facts),
        "state": _state(found),
    }


def _request(facts: RequestFacts) -> dict[str, Any]:
    shown = {
        "model": facts.model,
        "tenant": facts.tenant,
        "api": facts.api,
        "stream": facts.stream,
        "tags": {name: truth.value for name, truth in facts.tags.items()},
        "headers": dict(facts.headers),
    }
    return shown | ({} if facts.input_tokens is None else {"inputTokens": facts.input_tokens})


def _state(found: Reached) -> dict[str, Any]:
    models: dict[tuple[str, str], list[str]] = {}
    first: dict[tuple[str, str], tuple[Target, dict[str, float]]] = {}
    away = set()
    for place, target in enumerate(found.inventory.targets):
        numbers = found.measured[place]
        key = (target.type.value, target.id)
        models.setdefault(key, []).append(target.model)
        values = {FIELDS_OF_MEASURES[measure]: value for measure, value in numbers.items()}
        first.setdefault(key, (target, values))
        if found.out >> place & 1:
            away.add(key)
    engines, providers = [], []
    for key, (target, values) in first.items():
        shown = {"models": models[key], "labels": dict(target.labels), **values}
        shown |= {"available": False} if key in away else {}
        if target.type is BackendType.PROVIDER:
            providers.append({"name": target.id, **shown})
        else:
            named = {"pools": sorted(target.pools), "names": sorted(target.names - target.pools)}
            engines.append({"id": target.id, **named, **shown})
    return {
        "engines": engines,
        "providers": providers,
        "models": [
            {
                "name": model.name,
                "aliases": sorted(model.aliases),
                "classes": sorted(model.classes),
                "labels": dict(model.labels),
            }
            for model in found.inventory.models.values()
        ],
        "pools": {name: {"saturated": saturated} for name, saturated in found.pools.items()},
    }
