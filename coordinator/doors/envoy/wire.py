"""External processing on the wire: a gateway's messages to values, answers to messages. Pure.

The one place that knows the protobuf types. Nothing is refused here: what a message lacks is empty.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.json_format import MessageToDict

from coordinator.doors.envoy import contract
from coordinator.doors.envoy.messages import (
    Answer,
    BodyMode,
    Continue,
    Headers,
    Immediate,
    Modes,
    Part,
    Piece,
    Said,
)
from lineside.v1 import ext_proc_pb2 as pb

_MODES = {
    pb.NONE: BodyMode.NONE,
    pb.STREAMED: BodyMode.STREAMED,
    pb.BUFFERED: BodyMode.BUFFERED,
    pb.BUFFERED_PARTIAL: BodyMode.BUFFERED_PARTIAL,
    pb.FULL_DUPLEX_STREAMED: BodyMode.DUPLEX,
}
"""Any other mode is none that shows a body."""


def decode(message: bytes) -> Said | None:
    """Read a message; `None`: it is of a kind that this release does not know.

    Raises `google.protobuf.message.DecodeError` for what is no message.
    """
    request = pb.ProcessingRequest.FromString(message)
    part: Part | None = request.WhichOneof("request")
    if part is None:
        return None
    content = getattr(request, part)
    is_body, is_head = part.endswith("_body"), part.endswith("_headers")
    return Said(
        part,
        headers=_headers(content.headers) if is_head else (),
        body=content.body if is_body else b"",
        ends=content.end_of_stream if is_body or is_head else True,
        modes=_modes(request),
        observes=request.observability_mode,
        metadata=_plain(request.metadata_context.filter_metadata),
        attributes=_attributes(request),
    )


def encode(answer: Answer) -> bytes:
    """Write an answer."""
    response = pb.ProcessingResponse()
    match answer:
        case Immediate():
            _immediate(response.immediate_response, answer)
        case Piece(part, body, ends):
            piece = getattr(response, part).response.body_mutation.streamed_response
            piece.body, piece.end_of_stream = body, ends
        case Continue(part):
            _continue(getattr(response, part), answer)
            if answer.destination is not None:
                told = response.dynamic_metadata.fields[contract.NAMESPACE].struct_value
                told.fields[contract.DESTINATION].string_value = answer.destination
    return response.SerializeToString()


def _continue(content: Any, answer: Continue) -> None:
    content.SetInParent()
    if answer.part.endswith("_trailers"):
        return
    response = content.response
    _mutate(response.header_mutation, answer.set_headers)
    response.header_mutation.remove_headers.extend(answer.remove_headers)
    if answer.body is not None:
        response.body_mutation.body = answer.body
    response.clear_route_cache = answer.reroute


def _immediate(content: pb.ImmediateResponse, answer: Immediate) -> None:
    content.status.code = answer.status
    _mutate(content.headers, answer.headers)
    content.body, content.details = answer.body, answer.details


def _mutate(mutation: pb.HeaderMutation, headers: Headers) -> None:
    for name, value in headers:
        option = mutation.set_headers.add()
        option.header.key, option.header.raw_value = name, value.encode(errors="surrogateescape")
        option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _headers(sent: pb.HeaderMap) -> Headers:
    return tuple(
        (each.key.lower(), each.raw_value.decode(errors="surrogateescape") or each.value)
        for each in sent.headers
    )


def _modes(request: pb.ProcessingRequest) -> Modes | None:
    if not request.HasField("protocol_config"):
        return None
    said = request.protocol_config
    return Modes(
        _MODES.get(said.request_body_mode, BodyMode.NONE),
        _MODES.get(said.response_body_mode, BodyMode.NONE),
    )


def _attributes(request: pb.ProcessingRequest) -> Mapping[str, Any]:
    """Return all attributes, whichever filter they are named for."""
    if not request.attributes:
        return {}
    return {k: v for said in _plain(request.attributes).values() for k, v in said.items()}


def _plain(structs: Mapping[str, struct_pb2.Struct]) -> Mapping[str, Mapping[str, Any]]:
    return {name: MessageToDict(struct) for name, struct in structs.items()} if structs else {}
