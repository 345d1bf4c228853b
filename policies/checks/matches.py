"""One condition on a request: what can never be so, and what says nothing. Pure."""

import re
from collections.abc import Iterator

from lineside.findings import did_you_mean
from lineside.schema import Path
from policies.backends import APIS, NEVER_STREAMED
from policies.checks.codes import Found
from policies.checks.words import is_called, listed, quoted
from policies.globs import compile_glob
from policies.match import tags_of
from policies.model import Match, Tags, Threshold
from policies.reach import number_within
from policies.reserved import HOP_BY_HOP

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
"""What HTTP allows a header to be called."""


def check_match(path: Path, match: Match) -> Iterator[Found]:
    """Check an entry of `matches`, or an `if`."""
    yield from _tags(path, match)
    if match.api is not None:
        yield from _api(path, match.api, match.stream)
    if match.input_tokens is not None:
        yield from _input_tokens((*path, "inputTokens"), match.input_tokens)
    seen: dict[str, str] = {}
    for name in match.headers or {}:
        yield from _header((*path, "headers", name), name, seen)


def _tags(path: Path, match: Match) -> Iterator[Found]:
    tags = match.tags or Tags()
    single = () if match.tag is None else (match.tag,)
    both = [tag for tag in dict.fromkeys((*single, *tags.all)) if tag in tags.none]
    if both:
        message = f"no request both has and lacks tag {listed(both)}"
        yield Found((*path, "tags", "none"), "contradictory-match", message)
    elif tags.any and set(tags.any) <= set(tags.none):
        message = f"a request must have one of {listed(tags.any)} and none of them"
        yield Found((*path, "tags", "any"), "contradictory-match", message)
    if match.tags is not None and not tags_of(Match(tags=tags)):
        message = "`tags` names no tag, so that it holds for every request"
        yield Found((*path, "tags"), "empty-condition", message, "say `all`, `any` or `none`")


def _api(path: Path, api: str, stream: bool | None) -> Iterator[Found]:
    fits = compile_glob(api)
    meant = {each for each in APIS if fits(each)}
    if not meant:
        message = f"no API that requests come in {is_called(api)}"
        near, known = did_you_mean(api, APIS), f"they are {', '.join(map(quoted, APIS))}"
        yield Found((*path, "api"), "unknown-api", message, f"{near} {known}".strip())
    elif stream and meant <= NEVER_STREAMED:
        message = f"no answer in {listed(sorted(meant))} is streamed"
        yield Found((*path, "stream"), "contradictory-match", message)


def _input_tokens(path: Path, threshold: Threshold) -> Iterator[Found]:
    if threshold == Threshold():
        message = "`inputTokens` has no bound, so that it holds for every number"
        yield Found(path, "empty-condition", message, "say `greaterThan` or `lessThan`")
    elif number_within(threshold) is None:
        message = "no number of tokens is within the bounds of `inputTokens`"
        yield Found(path, "contradictory-match", message)


def _header(path: Path, name: str, seen: dict[str, str]) -> Iterator[Found]:
    known = seen.setdefault(name.lower(), name)
    if known != name:
        message = f"header {quoted(name)} is {quoted(known)} written otherwise"
        yield Found(path, "unmatchable-header", message, "case makes no difference: keep one")
    if not TOKEN.match(name):
        message = f"no header can be called {quoted(name)}"
        yield Found(path, "unmatchable-header", message, "use letters, digits and `-`")
    elif name.lower() in HOP_BY_HOP:
        message = f"header {quoted(name)} ends at each hop and says nothing of the request"
        yield Found(path, "unmatchable-header", message)
