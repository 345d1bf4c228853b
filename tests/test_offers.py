"""What a gateway has to change on a request to send it to a backend by itself."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from coordinator.apis import Api
from coordinator.candidates import Candidate, Provider
from coordinator.doors.offers import PRIVATE, Asking, offer, set_by, url_of
from coordinator.providers.dialects import Dialect
from lineside.ids import EngineId, ModelName
from policies.model import SetFields
from tests.test_service import engine

M = ModelName("m")
CLAUDE = Dialect("Anthropic", frozenset({Api.ANTHROPIC_MESSAGES}))


def asking(headers: Sequence[str] = (), **changes: object) -> Asking:
    asked = Asking(Api.OPENAI_CHAT, "/v1/chat/completions?a=b", False, headers, "r-1", "d-1", None)
    return msgspec.structs.replace(asked, **changes)


def provider(dialect: Dialect, root: str = "http://p/v1") -> Candidate:
    return Candidate(Provider(EngineId("p"), root, "p:443", {M: "up/1"}, dialect), M)


def test_an_engine_is_sent_the_request_nearly_as_it_is() -> None:
    sent = ("accept", "content-type", "cookie", "x-lineside-decision", "x-mine")
    told = offer(Candidate(engine("a"), M), b"{}", asking(sent))
    assert told.url == "http://a/v1/chat/completions?a=b"
    assert dict(told.set_headers) == {"x-request-id": "r-1", "x-lineside-decision": "d-1"}
    assert list(told.remove_headers) == sorted([*PRIVATE, "x-data-parallel-rank"])


def test_what_it_is_not_sent_by_the_client_is_put_in() -> None:
    ranked = Candidate(replace(engine("a"), rank=3), M)
    told = offer(ranked, b"{}", asking(("x-data-parallel-rank",)), {"authorization": "Bearer k"})
    assert dict(told.set_headers) == {
        "x-request-id": "r-1",
        "x-lineside-decision": "d-1",
        "x-data-parallel-rank": "3",
        "content-type": "application/json",
        "authorization": "Bearer k",
    }
    assert list(told.remove_headers) == sorted({*PRIVATE} - {"authorization"})


def test_a_provider_gets_none_of_the_clients_headers_but_those_of_its_api() -> None:
    sent = ("accept", "anthropic-beta", "anthropic-version", "host", "user-agent", "x-mine")
    asked = asking(sent, api=Api.ANTHROPIC_MESSAGES, path="/v1/messages")
    told = offer(provider(CLAUDE), b"{}", asked)
    assert told.url == "http://p/v1/messages"
    assert dict(told.set_headers) == {
        "x-request-id": "r-1",
        "x-lineside-decision": "d-1",
        "content-type": "application/json",
    }
    assert list(told.remove_headers) == sorted([*PRIVATE, "user-agent", "x-mine"])
    bare = offer(provider(CLAUDE), b"{}", msgspec.structs.replace(asked, headers=()))
    assert dict(bare.set_headers)["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize(
    ("dialect", "changes", "url"),
    [
        pytest.param(Dialect(), {}, "http://p/v1/chat/completions", id="in its own API"),
        pytest.param(CLAUDE, {}, "http://p/v1/messages", id="translated"),
        pytest.param(
            Dialect("Bedrock", frozenset({Api.BEDROCK_CONVERSE})),
            {"streams": True},
            "http://p/v1/model/up%2F1/converse-stream",
            id="a path that names the model",
        ),
        pytest.param(
            CLAUDE,
            {"api": Api.ANTHROPIC_MESSAGES, "counts": True},
            "http://p/v1/messages/count_tokens",
            id="to be counted",
        ),
    ],
)
def test_where_a_provider_is_asked(dialect: Dialect, changes: dict[str, object], url: str) -> None:
    assert url_of(provider(dialect), asking(**changes)) == url


def test_what_leaves_no_record_names_none() -> None:
    told = offer(Candidate(engine("a"), M), b"", asking(decision_id=""))
    assert "x-lineside-decision" not in dict(told.set_headers)


def test_a_policy_sets_headers_but_none_of_ours_and_nothing_that_splits_a_line() -> None:
    wanted = {"X-Team": "blue", "Authorization": "mine", "x-bad": "a\r\nb: c", "no name": "x"}
    assert set_by(SetFields(headers=wanted)) == {"x-team": "blue"}
    assert set_by(None) == set_by(SetFields()) == {}
    told = offer(Candidate(engine("a"), M), b"", asking(asked=SetFields(headers=wanted)))
    assert dict(told.set_headers)["x-team"] == "blue"
