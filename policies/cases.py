"""What the offline tools read beside resources, and whether a case came out as expected. Pure.

A `PolicyTest` is a list of cases: a request, changes to a cluster's state, and what the policies
are to say. A request is given as facts, or as a client would send it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta

from lineside import nodes
from lineside.documents import Problem, Reader
from lineside.findings import Finding, Place
from lineside.nodes import Node, Scalar, member
from lineside.schema import Path
from policies.facts import RequestFacts, Truth
from policies.live import state_of
from policies.load import FIELDS
from policies.model import BackendSelector, Name, SetFields, Strict, Unshown
from policies.state import Change, ClusterState, PoolMoment

T = TypeVar("T", bound=msgspec.Struct)

TagState: TypeAlias = Literal["present", "absent", "unknown"]
Names: TypeAlias = Name | tuple[Name, ...]
"""One, or any of several: where chance decides, whichever wins must be among them."""


class RequestSpec(Strict, frozen=True, kw_only=True):
    """A request, as far as policies may ask."""

    model: Name
    tenant: str = ""
    api: str = "openai-chat"
    stream: bool = False
    input_tokens: Annotated[int, Meta(ge=0)] | None = None
    """`None`: not known."""
    tags: Mapping[Name, TagState] = msgspec.field(default_factory=dict)
    """A tag that is not here is unknown."""
    headers: Mapping[Name, Annotated[str, Unshown]] = msgspec.field(default_factory=dict)
    conversation: str = ""
    """Splits follow it; without one, a share is drawn."""

    def facts(self) -> RequestFacts:
        """Return what the evaluator takes."""
        return RequestFacts(
            model=self.model,
            tenant=self.tenant,
            api=self.api,
            stream=self.stream,
            input_tokens=self.input_tokens,
            tags={name: Truth(state) for name, state in self.tags.items()},
            headers={name.lower(): value for name, value in self.headers.items()},
            conversation=self.conversation,
        )


class Refused(Strict, frozen=True, kw_only=True):
    """A refusal; what is left out is not compared."""

    status: int | None = None
    by: Name | None = None
    """`namespace/policy/rule`, with `/exclude` where one refused."""
    message: str | None = None
    """A part of it."""


class Expected(Strict, frozen=True, kw_only=True):
    """What the policies are to say; what is left out is not compared."""

    model: Names | None = None
    backend: Names | None = None
    fallbacks: tuple[Name, ...] | None = None
    """Backends after the winner, all of them in order."""
    never: BackendSelector | None = None
    """Backends that are neither winner nor fallback."""
    policy: Name | None = None
    """`namespace/name`, or `default`."""
    rule: Name | None = None
    stage: Name | None = None
    refusal: Refused | None = None
    reasons: tuple[Name, ...] = ()
    """Each is a part of some reason that `explain` gives."""
    set: SetFields | None = None
    shadow: Mapping[Name, str] = msgspec.field(default_factory=dict)
    """By shadow policy, a part of what it would have changed."""

    def problems(self) -> Iterator[Problem]:
        """Yield what cannot both be, and what says nothing."""
        chosen = [
            name
            for name in ("model", "backend", "fallbacks", "stage", "set")
            if getattr(self, name) is not None
        ]
        if self.refusal is not None and chosen:
            message = f"a request that is refused has no `{chosen[0]}`"
            yield Problem(((chosen[0],), ("refusal",)), "contradiction", message)
        if self == Expected():
            help = "name a `backend`, a `model`, a `refusal`, or what `never` gets the request"
            yield Problem(((),), "expects-nothing", "this case holds whatever policies say", help)


class Case(Strict, frozen=True, kw_only=True):
    """One request, and what is to become of it."""

    note: Annotated[str, Meta(min_length=1, max_length=500)]
    """What the case shows, in a sentence. No two of a test are the same."""
    request: RequestSpec
    changes: Mapping[Name, Change] = msgspec.field(default_factory=dict)
    """Measurements of engines and providers in this case, by id or name."""
    pools: Mapping[Name, PoolMoment] = msgspec.field(default_factory=dict)
    expect: Expected


class PolicyTest(Strict, frozen=True, kw_only=True):
    """Cases over the same policies and cluster."""

    api_version: Literal["lineside.dev/v1alpha1"] | None = None
    kind: Literal["PolicyTest"]
    files: tuple[Name, ...] = ()
    """Policies and other resources, from this file's folder. None: those named beside it."""
    state: ClusterState | None = None
    """`None`: the `ClusterState` among `files`, or beside them."""
    cases: Annotated[tuple[Case, ...], Meta(min_length=1, max_length=10_000)]

    def problems(self) -> Iterator[Problem]:
        """Yield each note that is there twice."""
        notes: dict[str, int] = {}
        for number, case in enumerate(self.cases):
            first = notes.setdefault(case.note, number)
            if first != number:
                message = "two cases have the same note"
                help = f"the first is case {first + 1}"
                yield Problem((("cases", number, "note"),), "duplicate-note", message, help)


@dataclass(frozen=True, slots=True)
class Suite:
    """A `PolicyTest`, and where each of its cases is written."""

    source: str
    test: PolicyTest
    places: Mapping[Path, Place]

    def place(self, number: int) -> Place:
        """Return where a case begins."""
        return self.places["cases", number]


@dataclass(slots=True)
class Tools:
    """What documents hold for the offline tools."""

    states: list[tuple[Place, ClusterState]] = field(default_factory=list)
    suites: list[Suite] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def tools_in(documents: Iterable[tuple[str, bytes]]) -> Tools:
    """Return the states and tests among documents. What else is there is `load`'s to judge."""
    found = Tools()
    for source, document in documents:
        reader = Reader(source, FIELDS)
        for root in nodes.parse(document, source).documents:
            reader.forget_places()
            kind = member(root, "kind")
            name = kind.text if isinstance(kind, Scalar) else ""
            if name == "ClusterState" and (state := reader.struct(ClusterState, root, ())):
                found.states.append((root.place, state))
            elif name == "PolicyTest" and (test := reader.struct(PolicyTest, root, ())):
                found.suites.append(Suite(source, test, reader.places))
        found.findings += reader.finished()
    return found


def read_state(document: bytes, source: str) -> ClusterState | list[Finding]:
    """Return the state of a file that holds nothing else. It need not name its kind.

    A list is what a coordinator shows of its engines.
    """
    parsed = nodes.parse(document, source)
    if len(parsed.documents) == 1 and isinstance(parsed.documents[0], nodes.Sequence):
        state = state_of(nodes.plain(parsed.documents[0]))
        help = "a list is what `lineside get engines --json` prints"
        wrong = Finding(Place(source, 1, 1), "wrong-value", "this is no list of engines", help)
        return state or [wrong]
    return _only(ClusterState, document, source)


def read_request(document: bytes, source: str) -> RequestSpec | list[Finding]:
    """Return a request of facts, of a client's body, or of `{path, headers, body}`.

    Of a body only the model and whether it streams are looked at.
    """
    parsed = nodes.parse(document, source)
    if parsed.findings or len(parsed.documents) != 1:
        return parsed.findings or [_one_only(source)]
    root = parsed.documents[0]
    body = member(root, "body")
    if body is None and member(root, "messages") is None and member(root, "prompt") is None:
        return _only(RequestSpec, document, source)
    said = {"model": member(body or root, "model"), "stream": member(body or root, "stream")}
    if body is not None:
        said["headers"] = member(root, "headers")
    is_chat = member(body or root, "prompt") is None
    api = "openai-chat" if is_chat else "openai-completions"
    place = root.place
    entries: list[tuple[Node, Node]] = [
        (Scalar(node.place, name, name), node) for name, node in said.items() if node is not None
    ]
    entries.append((Scalar(place, "api", "api"), Scalar(place, api, api)))
    reader = Reader(source, FIELDS)
    made: RequestSpec | None = reader.struct(RequestSpec, nodes.Mapping(place, entries), ())
    return reader.finished() if made is None or reader.findings else made


def _only(kind: type[T], document: bytes, source: str) -> T | list[Finding]:
    """Return the only document's struct, or what is wrong with it."""
    parsed = nodes.parse(document, source)
    if parsed.findings or len(parsed.documents) != 1:
        return parsed.findings or [_one_only(source)]
    reader = Reader(source, FIELDS)
    made = reader.struct(kind, parsed.documents[0], ())
    return reader.finished() if made is None or reader.findings else cast(T, made)


def _one_only(source: str) -> Finding:
    return Finding(Place(source, 1, 1), "one-document", "there must be one document in it")
