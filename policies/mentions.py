"""Every name, label and number that policies ask for: what `prove` has to tell apart. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from policies.match import tags_of
from policies.model import (
    BackendSelector,
    Consider,
    Drop,
    Labels,
    Match,
    ModelSelector,
    Share,
    Stage,
    Threshold,
)
from policies.walk import parts


@dataclass(frozen=True, slots=True)
class Mentions:
    """What some policies mention, each thing once, in the order in which they do."""

    requested: tuple[str, ...]
    """Globs on the model that a request asks for."""
    tenants: tuple[str, ...]
    apis: tuple[str, ...]
    headers: Mapping[str, tuple[str, ...]]
    """Globs by lower-case name."""
    tags: tuple[str, ...]
    input_tokens: tuple[Threshold, ...]
    models: tuple[str, ...]
    """Globs on names and aliases."""
    classes: tuple[str, ...]
    model_labels: Mapping[str, tuple[str, ...]]
    backends: tuple[str, ...]
    """Globs on what backends are called."""
    pools: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]


def mentions(structs: Iterable[msgspec.Struct]) -> Mentions:
    """Collect what is mentioned in structs and below them."""
    found = [part for struct in structs for _, part in parts(struct)]
    matches = [part for part in found if isinstance(part, Match)]
    models = [part for part in found if isinstance(part, ModelSelector)]
    backends = [part for part in found if isinstance(part, BackendSelector)]
    stages = [part for part in found if isinstance(part, Stage)]
    shares = [part for part in found if isinstance(part, Share)]
    in_pools = [part.pools for part in found if isinstance(part, Consider | Drop)]
    targets: list[BackendSelector | Stage] = [*backends, *stages]
    names = [each.names for each in targets] + [stage.order for stage in stages]
    return Mentions(
        requested=_given(match.model for match in matches),
        tenants=_given(match.tenant for match in matches),
        apis=_given(match.api for match in matches),
        headers=_headers(matches),
        tags=_once(tag for match in matches for tag in tags_of(match)),
        input_tokens=tuple(each.input_tokens for each in matches if each.input_tokens is not None),
        models=_joined((*(each.names for each in models), _given(s.model for s in shares))),
        classes=_joined(each.classes for each in models),
        model_labels=_labels(each.labels for each in models),
        backends=_joined((*names, _given(share.backend for share in shares))),
        pools=_joined(in_pools),
        labels=_labels(each.labels for each in targets),
    )


def _headers(matches: Sequence[Match]) -> dict[str, tuple[str, ...]]:
    pairs = [(k.lower(), glob) for match in matches for k, glob in (match.headers or {}).items()]
    return {name: _once(glob for k, glob in pairs if k == name) for name, _ in pairs}


def _labels(selectors: Iterable[Labels | None]) -> dict[str, tuple[str, ...]]:
    pairs = [pair for labels in selectors for pair in (labels or {}).items()]
    return {name: _once(value for k, value in pairs if k == name) for name, _ in pairs}


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _given(words: Iterable[str | None]) -> tuple[str, ...]:
    return _once(word for word in words if word is not None)


def _joined(lists: Iterable[Sequence[str] | None]) -> tuple[str, ...]:
    return _once(word for words in lists for word in words or ())
