"""When a request is what a policy asks for, field by field, in three-valued logic."""

from typing import Any

import pytest
import yaml

from policies.evaluate import compile_
from policies.facts import Inventory, Target, Truth
from policies.globs import compile_glob
from policies.verdict import Denied, Empty
from tests.policy_scenes import CLUSTER, GLM, PROVIDER, QWEN, policy, request, said, verdict

T, F, U = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN


def truth_of(
    condition: dict[str, Any], pools: dict[str, bool] | None = None, **facts: Any
) -> Truth:
    """Return a condition's truth: what is certain matches, what may be holds as an `if`."""
    text = yaml.safe_dump([{"name": "m", "matches": [condition], "reject": {"message": "sorry"}}])
    certain = isinstance(verdict([policy(text)], request(**facts), pools=pools), Denied)
    exclude = {"name": "x", "if": condition, "drop": {}}
    text = yaml.safe_dump([{"name": "g", "route": {"consider": [{}], "exclude": [exclude]}}])
    holds = isinstance(verdict([policy(text)], request(**facts), pools=pools), Empty)
    assert holds or not certain
    return T if certain else U if holds else F


@pytest.mark.parametrize(
    ("condition", "facts", "truth"),
    [
        pytest.param({}, {}, T, id="no field: always"),
        pytest.param({"model": GLM}, {}, T, id="the requested name"),
        pytest.param({"model": QWEN}, {}, F, id="another model"),
        pytest.param({"model": "chat"}, {}, T, id="an alias of the model that is meant"),
        pytest.param({"model": "large"}, {}, T, id="a class of the model that is meant"),
        pytest.param(
            {"model": "glm*"}, {"model": "chat"}, T, id="a glob on the name, asked by an alias"
        ),
        pytest.param({"model": "*5*3"}, {}, T, id="a glob with several stars"),
        pytest.param({"model": "GLM*"}, {}, F, id="case counts"),
        pytest.param({"model": "la*"}, {"model": "large"}, T, id="the requested class itself"),
        pytest.param(
            {"model": "open"}, {"model": "large"}, U, id="a class of some models that are meant"
        ),
        pytest.param({"model": QWEN}, {"model": "large"}, U, id="one of the models that are meant"),
        pytest.param(
            {"model": "*-*.*"},
            {"model": "large"},
            T,
            id="every model that is meant, each by its own name",
        ),
        pytest.param(
            {"model": "x*"}, {"model": "xyz"}, T, id="a name that the cluster does not know"
        ),
        pytest.param({"model": GLM}, {"model": "xyz"}, F, id="which means no model of it"),
        pytest.param({"tag": "a"}, {"tags": "a"}, T, id="a present tag"),
        pytest.param({"tag": "a"}, {"tags": "-a"}, F, id="an absent tag"),
        pytest.param({"tag": "a"}, {}, U, id="a tag of which nothing is known"),
        pytest.param({"tags": {"all": ["a", "b"]}}, {"tags": "a b"}, T, id="all: all present"),
        pytest.param({"tags": {"all": ["a", "b"]}}, {"tags": "a"}, U, id="all: one unknown"),
        pytest.param(
            {"tags": {"all": ["a", "b"]}},
            {"tags": "-a"},
            F,
            id="all: one absent, whatever is unknown",
        ),
        pytest.param(
            {"tags": {"any": ["a", "b"]}},
            {"tags": "a"},
            T,
            id="any: one present, whatever is unknown",
        ),
        pytest.param(
            {"tags": {"any": ["a", "b"]}}, {"tags": "-a"}, U, id="any: one unknown, none present"
        ),
        pytest.param({"tags": {"any": ["a", "b"]}}, {"tags": "-a -b"}, F, id="any: none present"),
        pytest.param({"tags": {"none": ["a", "b"]}}, {"tags": "-a -b"}, T, id="none: all absent"),
        pytest.param({"tags": {"none": ["a", "b"]}}, {"tags": "-a"}, U, id="none: one unknown"),
        pytest.param(
            {"tags": {"none": ["a", "b"]}},
            {"tags": "a"},
            F,
            id="none: one present, whatever is unknown",
        ),
        pytest.param({"tags": {}}, {}, T, id="empty tags: always"),
        pytest.param(
            {"tags": {"all": ["a", "b"]}},
            {"tags": "-b"},
            F,
            id="all: one absent, after an unknown one",
        ),
        pytest.param(
            {"tag": "a", "inputTokens": {"atLeast": 1}},
            {"input_tokens": 0},
            F,
            id="a false field after an unknown one",
        ),
        pytest.param(
            {"tag": "a", "tags": {"none": ["b"]}}, {"tags": "a b"}, F, id="tag and tags both count"
        ),
        pytest.param(
            {"tag": "a", "tags": {"none": ["b"]}}, {"tags": "a -b"}, T, id="tag and tags both hold"
        ),
        pytest.param(
            {"tag": "a", "stream": True}, {}, F, id="a false field outweighs an unknown one"
        ),
        pytest.param(
            {"tag": "a", "stream": False}, {}, U, id="an unknown field outweighs a true one"
        ),
        pytest.param({"tenant": "team-*"}, {"tenant": "team-a"}, T, id="a tenant by glob"),
        pytest.param(
            {"tenant": "team"}, {"tenant": "team-a"}, F, id="a tenant is matched as a whole"
        ),
        pytest.param({"tenant": "Team-*"}, {"tenant": "team-a"}, F, id="a tenant's case counts"),
        pytest.param({"tenant": "*"}, {}, T, id="no tenant is a tenant without a name"),
        pytest.param({"api": "openai-*"}, {"api": "openai-chat"}, T, id="an API by glob"),
        pytest.param({"api": "openai-chat"}, {"api": "openai-completions"}, F, id="another API"),
        pytest.param({"stream": True}, {"stream": True}, T, id="streams"),
        pytest.param({"stream": False}, {"stream": True}, F, id="does not stream"),
        pytest.param(
            {"headers": {"X-Beta": "on"}},
            {"headers": {"x-beta": "on"}},
            T,
            id="a header, by any case of its name",
        ),
        pytest.param(
            {"headers": {"x-beta": "o*"}}, {"headers": {"x-beta": "on"}}, T, id="a header by glob"
        ),
        pytest.param(
            {"headers": {"x-beta": "On"}},
            {"headers": {"x-beta": "on"}},
            F,
            id="a header's value has its case",
        ),
        pytest.param(
            {"headers": {"x-beta": "*"}}, {}, F, id="an absent header fits nothing, not even a star"
        ),
        pytest.param(
            {"headers": {"x-beta": "*"}},
            {"headers": {"x-beta": ""}},
            T,
            id="an empty header fits a star",
        ),
        pytest.param(
            {"headers": {"a": "*", "b": "*"}}, {"headers": {"a": "1"}}, F, id="all headers must fit"
        ),
        pytest.param(
            {"inputTokens": {"greaterThan": 10}}, {"input_tokens": 11}, T, id="more tokens"
        ),
        pytest.param(
            {"inputTokens": {"greaterThan": 10}}, {"input_tokens": 10}, F, id="as many is not more"
        ),
        pytest.param({"inputTokens": {"atLeast": 10}}, {"input_tokens": 10}, T, id="at least"),
        pytest.param(
            {"inputTokens": {"lessThan": 10}}, {"input_tokens": 10}, F, id="as many is not less"
        ),
        pytest.param({"inputTokens": {"atMost": 10}}, {"input_tokens": 10}, T, id="at most"),
        pytest.param(
            {"inputTokens": {"greaterThan": 5, "lessThan": 10}},
            {"input_tokens": 10},
            F,
            id="both bounds",
        ),
        pytest.param({"inputTokens": {"atLeast": 0}}, {}, U, id="tokens that were not counted"),
        pytest.param({"inputTokens": {"atLeast": 0}}, {"input_tokens": 0}, T, id="zero is a count"),
        pytest.param(
            {"pool": {"saturated": True}},
            {"pools": {"main": True}},
            T,
            id="the model's pool is saturated",
        ),
        pytest.param({"pool": {"saturated": True}}, {"pools": {"main": False}}, F, id="it is not"),
        pytest.param(
            {"pool": {"saturated": False}},
            {"pools": {"main": False}},
            T,
            id="asked the other way round",
        ),
        pytest.param({"pool": {"saturated": True}}, {}, U, id="a pool of which nothing is known"),
        pytest.param(
            {"pool": {"saturated": True}},
            {"pools": {"side": True}},
            U,
            id="other models' pools do not count",
        ),
        pytest.param(
            {"pool": {"saturated": True}},
            {"model": "large", "pools": {"main": True, "side": True}},
            T,
            id="several pools, all saturated",
        ),
        pytest.param(
            {"pool": {"saturated": True}},
            {"model": "large", "pools": {"main": True, "side": False}},
            F,
            id="one of several can take more",
        ),
        pytest.param(
            {"pool": {"saturated": True}},
            {"model": "large", "pools": {"main": True}},
            U,
            id="one of several is unknown, the rest saturated",
        ),
        pytest.param(
            {"pool": {"saturated": True}},
            {"model": "large", "pools": {"main": False}},
            F,
            id="one of several is unknown, another can take more",
        ),
        pytest.param({"pool": {"saturated": True}}, {"model": "xyz"}, U, id="no pool at all"),
        pytest.param(
            {"pool": {"name": "side", "saturated": True}},
            {"pools": {"side": True}},
            T,
            id="a pool by name",
        ),
        pytest.param(
            {"pool": {"name": "side", "saturated": True}},
            {"pools": {"main": True}},
            U,
            id="another pool does not count",
        ),
    ],
)
def test_a_condition_is_true_false_or_unknown(
    condition: dict[str, Any], facts: dict[str, Any], truth: Truth
) -> None:
    assert truth_of(condition, **facts) is truth


@pytest.mark.parametrize(
    ("entries", "tags", "expected"),
    [
        pytest.param([{"tag": "a"}, {"tag": "b"}], "b", True, id="one entry is enough"),
        pytest.param([{"tag": "a"}, {"tag": "b"}], "-a -b", False, id="none holds"),
        pytest.param([{"tag": "a"}, {"tag": "b"}], "-a", False, id="one unknown is not enough"),
        pytest.param(
            [{"tag": "a"}, {"tags": {"none": ["a"]}}], "", False, id="two unknowns are not either"
        ),
    ],
)
def test_a_rule_matches_by_any_entry(entries: list[Any], tags: str, expected: bool) -> None:
    rules = yaml.safe_dump([{"matches": entries, "reject": {"message": "sorry"}}])
    found = verdict([policy(rules)], request(tags=tags))
    assert isinstance(found, Denied) is expected


def test_only_the_headers_asked_for_are_named() -> None:
    rules = """
    - {matches: [{headers: {X-Beta: "*"}}, {headers: {x-region: eu}}], route: {exclude: [
        {name: x, if: {headers: {X-Data: "*"}}, drop: {}}]}}
    """
    shadow = policy("[{matches: [{headers: {x-new: eu}}]}]", "s", mode="Shadow")
    assert compile_([policy(rules), shadow]).names_headers == {
        "x-beta",
        "x-region",
        "x-data",
        "x-new",
    }


def test_a_providers_pool_is_not_asked_whether_it_is_saturated() -> None:
    provider = Target("p", PROVIDER, GLM, frozenset({"p", "far"}), {}, frozenset({"far"}))
    known = Inventory((*CLUSTER.targets, provider), CLUSTER.models)
    rules = policy("[{matches: [{pool: {saturated: true}}], reject: {message: full}}]")
    pools = {"main": True, "far": False}
    assert said(verdict([rules], request(), pools=pools, inventory=known)) == "403 by n/p/r0"


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        pytest.param("a.c", "abc", False, id="a point is a point"),
        pytest.param("a?", "ab", False, id="a question mark is itself"),
        pytest.param("[ab]", "[ab]", True, id="so are brackets"),
        pytest.param("*", "", True, id="a star is also nothing"),
        pytest.param("a*", "a\nb", True, id="a star is also a line's end"),
        pytest.param("ab*bc", "abc", False, id="ends may not overlap"),
        pytest.param("ab*bc", "abbc", True, id="but touch"),
        pytest.param("a*b*c", "a-c-b-c", True, id="parts in order"),
        pytest.param("a*b*c", "a-c-c", False, id="a part is missing"),
        pytest.param("a**b", "ab", True, id="two stars are one"),
        pytest.param("*ab*ab*", "-ab-", False, id="a part is not used twice"),
    ],
)
def test_globs(pattern: str, text: str, fits: bool) -> None:
    assert compile_glob(pattern)(text) is fits


def test_a_glob_of_many_stars_takes_no_longer() -> None:
    assert not compile_glob("*a" * 100 + "*b*c")("a" * 100_000 + "c")
