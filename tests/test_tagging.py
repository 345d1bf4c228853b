"""Tags that are given: by the configuration, and by a gateway that is trusted."""

import pytest

from coordinator.canonical import Api, Canonical, parse
from coordinator.tagging import GivenTags, parse_tags
from policies.facts import Truth


def request(**headers: str) -> Canonical:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    parsed = parse(Api.OPENAI_CHAT, headers, body)
    assert isinstance(parsed, Canonical)
    return parsed


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        pytest.param(["pii"], {"pii": Truth.TRUE}, id="a name alone is present"),
        pytest.param([" pii = absent "], {"pii": Truth.FALSE}, id="spaces do not count"),
        pytest.param(["pii=unknown"], {"pii": Truth.UNKNOWN}, id="unknown"),
        pytest.param(["pii=no"], {"pii": Truth.UNKNOWN}, id="a state that is none is unknown"),
        pytest.param(["", "=absent", "x" * 300], {}, id="what is no name is left out"),
    ],
)
def test_a_list_of_tags_is_read(words: list[str], tags: dict[str, Truth]) -> None:
    assert parse_tags(words) == tags


async def test_the_gateways_word_counts_before_the_configured_one() -> None:
    tagger = GivenTags(["code=absent", "pii"], "X-Tags")
    assert await tagger.tags(request(**{"x-tags": "code,low"})) == {
        "code": Truth.TRUE,
        "pii": Truth.TRUE,
        "low": Truth.TRUE,
    }


async def test_a_header_that_nobody_trusts_says_nothing() -> None:
    assert await GivenTags().tags(request(**{"x-tags": "pii=absent"})) == {}
