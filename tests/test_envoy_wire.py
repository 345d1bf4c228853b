"""External processing on the wire: messages to values and answers to messages, as Envoy writes."""

import pytest
from google.protobuf.json_format import MessageToDict

from coordinator.doors.envoy import contract, wire
from coordinator.doors.envoy.messages import (
    Answer,
    BodyMode,
    Continue,
    Immediate,
    Modes,
    Piece,
    Said,
)
from lineside.v1 import ext_proc_pb2 as pb


def headers(**named: bytes) -> pb.HeaderMap:
    return pb.HeaderMap(
        headers=[pb.HeaderValue(key=name, raw_value=value) for name, value in named.items()]
    )


def test_the_first_message_is_read_with_all_that_is_said_beside_it() -> None:
    request = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=headers(a=b"1", B=b"\xff"), end_of_stream=True),
        protocol_config=pb.ProtocolConfiguration(
            request_body_mode=pb.FULL_DUPLEX_STREAMED, response_body_mode=pb.STREAMED
        ),
    )
    hint = request.metadata_context.filter_metadata[contract.SUBSET_NAMESPACE]
    hint.update({contract.SUBSET: ["a:1", "b:2"]})
    request.attributes["envoy.filters.http.ext_proc"].update({contract.UPSTREAM: "c:3"})
    assert wire.decode(request.SerializeToString()) == Said(
        "request_headers",
        headers=(("a", "1"), ("b", "\udcff")),
        ends=True,
        modes=Modes(BodyMode.DUPLEX, BodyMode.STREAMED),
        metadata={contract.SUBSET_NAMESPACE: {contract.SUBSET: ["a:1", "b:2"]}},
        attributes={contract.UPSTREAM: "c:3"},
    )


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        pytest.param(
            pb.ProcessingRequest(request_body=pb.HttpBody(body=b"ab")),
            Said("request_body", body=b"ab"),
            id="a piece",
        ),
        pytest.param(
            pb.ProcessingRequest(response_body=pb.HttpBody(end_of_stream=True)),
            Said("response_body", ends=True),
            id="an end",
        ),
        pytest.param(
            pb.ProcessingRequest(request_trailers=pb.HttpTrailers(trailers=headers(a=b"1"))),
            Said("request_trailers", ends=True),
            id="trailers, of which nothing is read",
        ),
        pytest.param(
            pb.ProcessingRequest(
                request_headers=pb.HttpHeaders(
                    headers=pb.HeaderMap(headers=[pb.HeaderValue(key="a", value="text")])
                ),
                observability_mode=True,
            ),
            Said("request_headers", headers=(("a", "text"),), observes=True),
            id="an observer, and a value that is text",
        ),
        pytest.param(pb.ProcessingRequest(), None, id="nothing that is known"),
    ],
)
def test_messages_are_read(request_: pb.ProcessingRequest, said: Said | None) -> None:
    assert wire.decode(request_.SerializeToString()) == said


def written(answer: Answer) -> dict[str, object]:
    message = pb.ProcessingResponse.FromString(wire.encode(answer))
    shown: dict[str, object] = MessageToDict(message, preserving_proto_field_name=True)
    return shown


def test_changes_are_written_with_the_destination_in_both_places() -> None:
    answer = Continue("request_headers", (("a", "\udcff"),), ("b",), b"", "e:1,e:2", True)
    assert written(answer) == {
        "request_headers": {
            "response": {
                "header_mutation": {
                    "set_headers": [
                        {
                            "header": {"key": "a", "raw_value": "/w=="},
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        }
                    ],
                    "remove_headers": ["b"],
                },
                "body_mutation": {"body": ""},
                "clear_route_cache": True,
            }
        },
        "dynamic_metadata": {"envoy.lb": {contract.DESTINATION: "e:1,e:2"}},
    }


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(Continue("request_trailers"), {"request_trailers": {}}, id="trailers"),
        pytest.param(
            Continue("response_body"),
            {"response_body": {"response": {"header_mutation": {}}}},
            id="nothing changes",
        ),
        pytest.param(
            Piece("request_body", b"ab", True),
            {
                "request_body": {
                    "response": {
                        "body_mutation": {
                            "streamed_response": {"body": "YWI=", "end_of_stream": True}
                        }
                    }
                }
            },
            id="a piece",
        ),
        pytest.param(
            Immediate(429, (("retry-after", "7"),), b"ab", "over_limit"),
            {
                "immediate_response": {
                    "status": {"code": 429},
                    "headers": {
                        "set_headers": [
                            {
                                "header": {"key": "retry-after", "raw_value": "Nw=="},
                                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                            }
                        ]
                    },
                    "body": "YWI=",
                    "details": "over_limit",
                }
            },
            id="the client's answer",
        ),
    ],
)
def test_answers_are_written(answer: Answer, message: dict[str, object]) -> None:
    assert written(answer) == message


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [("1.2.3.4:80", "1.2.3.4"), ("1.2.3.4", "1.2.3.4"), ("[::1]:80", "::1"), ("[::1]", "::1")],
)
def test_an_endpoints_host_is_read(endpoint: str, host: str) -> None:
    assert contract.host(endpoint) == host
