"""Every refusal has a status, a reason and words of its own."""

from typing import get_args

import pytest

from coordinator.canonical import BadRequest
from coordinator.refusal import (
    REASONS,
    BodyTimeout,
    BodyTooLarge,
    BodyTruncated,
    BodyWithheld,
    DecisionTimeout,
    Draining,
    Fault,
    Malformed,
    MethodNotAllowed,
    NoEngineReady,
    NotCounted,
    NotFound,
    NothingAllowed,
    NothingInSubset,
    NotServed,
    OverLimit,
    Overloaded,
    PolicyDenied,
    ProvidersPause,
    Refusal,
    ResponseElsewhere,
    ResponseGone,
    ResponseUnknown,
    UnknownModel,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
    blamed,
    to_reply,
)

CASES: list[tuple[Refusal, int, str, dict[str, str]]] = [
    (BadRequest("`model` must name a model", "model"), 400, "bad_request", {}),
    (UnknownModel("nope", ("a", "b")), 404, "unknown_model", {}),
    (NoEngineReady("m"), 503, "no_engine_ready", {"retry-after": "1"}),
    (PolicyDenied("not here", 451), 451, "policy_denied", {}),
    (NothingAllowed("m", "ns/p/r/x"), 503, "nothing_allowed", {"retry-after": "1"}),
    (NothingInSubset("m"), 503, "nothing_in_subset", {"retry-after": "1"}),
    (ProvidersPause("m", 7), 503, "providers_pause", {"retry-after": "7"}),
    (Overloaded("m", 150.2, 31), 429, "overloaded", {"retry-after": "31"}),
    (Malformed("no HTTP", 431), 431, "malformed", {"connection": "close"}),
    (BodyTooLarge(100), 413, "body_too_large", {}),
    (OverLimit("tokens a minute", 7), 429, "over_limit", {"retry-after": "7"}),
    (UpstreamUnreachable(3), 502, "upstream_unreachable", {"retry-after": "1"}),
    (UpstreamBroken(), 502, "upstream_broken", {}),
    (UpstreamTimeout("first_token", 2.5), 504, "upstream_timeout", {}),
    (UpstreamError(503), 502, "upstream_error", {"retry-after": "1"}),
    (BodyTimeout(75), 408, "body_timeout", {"connection": "close"}),
    (BodyTruncated(), 413, "body_truncated", {}),
    (BodyWithheld(), 500, "body_withheld", {}),
    (DecisionTimeout(5), 503, "decision_timeout", {"retry-after": "1"}),
    (Draining(), 503, "draining", {"retry-after": "1", "connection": "close"}),
    (ResponseUnknown(), 404, "response_unknown", {}),
    (ResponseGone(), 404, "response_gone", {}),
    (ResponseElsewhere("m"), 400, "response_elsewhere", {}),
    (NotServed("m"), 404, "not_served", {}),
    (NotCounted("m"), 503, "not_counted", {"retry-after": "1"}),
    (NotFound(), 404, "not_found", {}),
    (MethodNotAllowed("POST"), 405, "method_not_allowed", {"allow": "POST"}),
    (Fault("req-1"), 500, "fault", {}),
]


@pytest.mark.parametrize(
    ("refusal", "status", "reason", "headers"),
    [pytest.param(*case, id=case[2]) for case in CASES],
)
def test_each_refusal_has_its_reply(
    refusal: Refusal, status: int, reason: str, headers: dict[str, str]
) -> None:
    reply = to_reply(refusal)
    assert (reply.status, reply.reason, dict(reply.headers)) == (status, reason, headers)
    error = reply.openai_error()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert "\n" not in error["message"]


def test_the_list_of_refusals_and_of_reasons_is_complete() -> None:
    assert {type(case[0]) for case in CASES} == set(get_args(Refusal))
    assert [case[2] for case in CASES] == list(REASONS)


def test_messages_say_what_to_do() -> None:
    assert to_reply(UnknownModel("nope", ("a", "b"))).message == (
        "the model `nope` does not exist; served models: `a`, `b`"
    )
    assert to_reply(UpstreamTimeout("first_token", 2.5)).message == (
        "the engine took longer than 2.5 s (first token timeout)"
    )


def test_a_key_that_the_engine_refuses_is_not_the_clients_fault() -> None:
    reply = to_reply(UpstreamError(401))
    assert reply.status == 502
    assert "operator" in reply.message


def test_a_long_model_name_is_not_echoed_in_full() -> None:
    assert len(to_reply(UnknownModel("x" * 10_000, ())).message) < 300


def test_a_fault_is_the_providers_where_it_is_one() -> None:
    said = [
        to_reply(blamed(refusal, "provider")).message
        for refusal in (
            UpstreamUnreachable(3),
            UpstreamBroken(),
            UpstreamTimeout("idle", 1.0),
            UpstreamError(401),
            UpstreamError(500),
        )
    ]
    assert said == [
        "no provider could be reached in 3 tries; send the request again",
        "the provider broke off; it may have run the request, so it was not sent twice",
        "the provider took longer than 1 s (idle timeout)",
        "the provider did not accept this gateway's key; its operator must set it",
        "the provider failed, with status 500",
    ]
    assert blamed(UnknownModel("m", ()), "provider") == UnknownModel("m", ())
