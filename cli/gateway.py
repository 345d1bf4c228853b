"""Asks a coordinator as a gateway does, over gRPC: where to send a request, and how.

What was asked is reported as aborted at once, so that nothing stays accounted.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from cli.admin import Refused
from cli.children import CouldNotRun
from lineside.v1 import router_pb2 as pb
from lineside.v1 import router_pb2_grpc as rpc

TIMEOUT_S = 10.0

MOST_BYTES = 64 << 20
"""Of an answer: a body for each backend."""

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Whom to ask, and as whom."""

    address: str
    token_file: Path | None = None
    ca_file: Path | None = None
    """Whom to trust; `None`: plaintext."""


async def route(whom: Coordinator, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer as the query's JSON has it. Raises `CouldNotRun`, `Refused`."""
    said = request["body"]
    body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
    headers = [pb.Header(name=n, value=str(v)) for n, v in request["headers"].items()]
    question = pb.RouteRequest(method="POST", path=request["path"], headers=headers, body=body)
    metadata = _metadata(whom)
    try:
        async with _channel(whom) as channel:
            stub = rpc.RouterStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.Route(question, metadata=metadata, timeout=TIMEOUT_S)
            if name := answer.decision_id:  # otherwise nothing is accounted
                over = pb.ReportRequest(decision_id=name, event=pb.ReportRequest.ABORTED)
                await stub.Report(over, metadata=metadata, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() in _AWAY:
            raise CouldNotRun(f"could not reach {whom.address} over gRPC", _help(whom)) from None
        raise Refused(f"{whom.address} refuses: {error.details()}") from None
    return _json(answer)


def told(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield an answer's lines for people."""
    if answered := answer.get("answered"):
        yield f"answered here: {answered['status']}"
        yield f"  {answered['body']}"
        return
    yield f"decision {answer['decision_id'] or '(none: nothing is accounted)'}"
    if refused := answer.get("refused"):
        yield f"refused: {refused['status']} {refused['reason']}"
        yield f"  {refused['body']}"
        return
    target, fallbacks = answer["routed"]["target"], answer["routed"]["fallbacks"]
    yield f"send to {target['url']} (backend {target['backend']}, model {target['model']})"
    for name, value in target["set_headers"].items():
        yield f"  set     {name}: {value}"
    yield f"  remove  {', '.join(target['remove_headers'])}"
    yield f"  body    {len(target['body'].encode())} bytes"
    for each in fallbacks:
        yield f"if that fails: {each['url']} (backend {each['backend']}, model {each['model']})"
    if answer["decision_id"]:
        yield "reported as aborted: nothing was sent, and nothing stays accounted"


def _help(whom: Coordinator) -> str:
    help = "is that its `route` listener, and does it speak "
    if whom.ca_file is not None:
        return f"{help}TLS, with a certificate that {whom.ca_file} vouches for?"
    return (
        f"{help}plaintext? For TLS, its default, say --ca-file: the authority of"
        " `gateways.cert_file`; where that is not set, set `gateways.self_signed_dir` and take"
        " `tls.crt` in it"
    )


def _channel(whom: Coordinator) -> grpc.aio.Channel:
    options = [("grpc.max_receive_message_length", MOST_BYTES)]
    if whom.ca_file is None:
        return grpc.aio.insecure_channel(whom.address, options)
    credentials = grpc.ssl_channel_credentials(_read(whom.ca_file))
    return grpc.aio.secure_channel(whom.address, credentials, options)


def _metadata(whom: Coordinator) -> list[tuple[str, str]]:
    if whom.token_file is None:
        return []
    token = _read(whom.token_file).decode(errors="replace").strip()
    if not (token and token.isascii() and token.isprintable()):
        raise Refused(f"{whom.token_file} holds no token")
    return [("authorization", f"Bearer {token}")]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CouldNotRun(f"{path}: cannot be read: {(error.strerror or '').lower()}") from None


def _json(answer: pb.RouteResponse) -> dict[str, Any]:
    if answer.WhichOneof("outcome") == "answered":
        said = {
            "status": answer.answered.status,
            "headers": {header.name: header.value for header in answer.answered.headers},
            "body": answer.answered.body.decode(errors="replace"),
        }
        return {"decision_id": answer.decision_id, "answered": said}
    if answer.WhichOneof("outcome") == "refused":
        refused = answer.refused
        said = {
            "status": refused.status,
            "headers": {header.name: header.value for header in refused.headers},
            "body": refused.body.decode(errors="replace"),
            "reason": refused.reason,
        }
        return {"decision_id": answer.decision_id, "refused": said}
    routed = {
        "target": _target(answer.routed.target),
        "fallbacks": [_target(each) for each in answer.routed.fallbacks],
    }
    return {"decision_id": answer.decision_id, "routed": routed}


def _target(target: pb.Target) -> dict[str, Any]:
    return {
        "endpoint": target.endpoint,
        "backend": target.backend,
        "model": target.model,
        "url": target.url,
        "set_headers": {header.name: header.value for header in target.set_headers},
        "remove_headers": list(target.remove_headers),
        "body": target.body.decode(errors="replace"),
    }
