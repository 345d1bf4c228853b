"""Claims that a policy carries as an annotation, and what comes of proving them. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lineside.findings import did_you_mean
from policies.checks.codes import Found
from policies.checks.words import quoted
from policies.facts import Inventory
from policies.globs import any_of
from policies.mentions import mentions
from policies.model import BackendSelector, BackendType, InferencePolicy
from policies.prove import Counterexample, Holds, Undecided, prove

ANNOTATION = "lineside.dev/prove"

PATH = ("metadata", "annotations", ANNOTATION)

FORM = "write `tag=NAME never=Provider`, several of them with `;` between"

MAX_CLAIMS = 20
"""So many claims of one annotation are proved; each may take seconds."""

_TYPES = {each.value: each for each in BackendType}


@dataclass(frozen=True, slots=True)
class Claim:
    """Requests with a tag are never sent to some backends."""

    tag: str
    never: BackendSelector


@dataclass(frozen=True, slots=True)
class Malformed:
    """A text that is no claim, and why."""

    message: str
    help: str = FORM


def parse_never(text: str) -> BackendSelector | Malformed:
    """Read which backends are meant: `Provider`, `Local`, or one with a name, `Provider:GLOB`."""
    kind, colon, name = text.partition(":")
    if kind in _TYPES and bool(colon) == bool(name):
        return BackendSelector(type=_TYPES[kind], names=(name,) if name else None)
    help_ = "" if kind in _TYPES else did_you_mean(kind, _TYPES)
    message = f"{quoted(text)} says of no backend that it is meant"
    return Malformed(
        message, help_ or "say `Provider`, `Local`, or one with a name: `Provider:acme`"
    )


def parse_claims(text: str) -> list[Claim | Malformed]:
    """Read an annotation."""
    claims = [_claim(part.strip()) for part in text.split(";") if part.strip()]
    if not claims:
        return [Malformed("nothing is claimed")]
    if len(claims) > MAX_CLAIMS:
        return [Malformed(f"an annotation has at most {MAX_CLAIMS} claims", "use several policies")]
    return claims


def check_proofs(
    policy: InferencePolicy, policies: Sequence[InferencePolicy], inventory: Inventory | None
) -> Iterator[Found]:
    """Prove what a policy claims of all policies together."""
    text = policy.metadata.annotations.get(ANNOTATION)
    for claim in () if text is None else parse_claims(text):
        if isinstance(claim, Malformed):
            yield Found(PATH, "proof-malformed", claim.message, claim.help)
            continue
        yield from vacuous(claim, policies, inventory)
        match prove(policies, claim.tag, claim.never, inventory):
            case Counterexample() as found:
                yield Found(PATH, "proof-failed", found.sentence)
            case Undecided(why):
                message = f"not proved for tag {quoted(claim.tag)}: {why}"
                yield Found(PATH, "proof-undecided", message)
            case Holds(unknown=Counterexample() as found):
                yield Found(PATH, "proof-needs-tag", found.sentence)
            case Holds(unknown=Undecided(why)):
                message = f"not proved while tag {quoted(claim.tag)} is unknown: {why}"
                yield Found(PATH, "proof-needs-tag", message)


def vacuous(
    claim: Claim, policies: Sequence[InferencePolicy], inventory: Inventory | None
) -> Iterator[Found]:
    """Find a claim whose words mean nothing, as mistyped ones do."""
    tags = mentions(policies).tags
    if claim.tag not in tags:
        message = f"no policy names tag {quoted(claim.tag)}"
        yield Found(PATH, "proof-vacuous", message, did_you_mean(claim.tag, tags))
    names = claim.never.names or ()
    if inventory is not None and names:
        known = {n for t in inventory.targets if t.type is claim.never.type for n in t.names}
        if not any_of(names)(known):
            message = f"no backend of the inventory is called {quoted(names[0])}"
            yield Found(PATH, "proof-vacuous", message, did_you_mean(names[0], sorted(known)))


def _claim(text: str) -> Claim | Malformed:
    fields = dict.fromkeys(("tag", "never"), "")
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in fields or not equals or not value or fields[name]:
            return Malformed(f"{quoted(word)} is not part of a claim")
        fields[name] = value
    missing = [name for name, value in fields.items() if not value]
    if missing:
        return Malformed(f"{quoted(missing[0])} is missing from {quoted(text)}")
    never = parse_never(fields["never"])
    return never if isinstance(never, Malformed) else Claim(fields["tag"], never)
