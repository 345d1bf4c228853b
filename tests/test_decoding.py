"""What others write may be nested deeper than can be read: each reader takes it for garbage."""

import ast
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from coordinator import error_shapes
from coordinator.canonical import Api
from coordinator.kube.api import Answer
from coordinator.servers import read_models
from lineside.decoding import Reader, decoded

DEEP = b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}"


@pytest.mark.parametrize("type", [object, dict, msgspec.defstruct("S", [])])
def test_what_is_too_deep_is_no_json(type: type[object]) -> None:
    with pytest.raises(msgspec.DecodeError, match="nested too deep"):
        decoded(DEEP, type)
    with pytest.raises(msgspec.DecodeError, match="nested too deep"):
        Reader(type).decode(DEEP)
    assert decoded(b'{"x": []}', type) == Reader(type).decode(b'{"x": []}')


@pytest.mark.parametrize(
    ("read", "comes_to"),
    [
        (lambda: Answer(500, DEEP).reason, "it answers 500"),
        (lambda: error_shapes.is_no_answer(404, DEEP), True),
        (lambda: error_shapes.in_shape(Api.ANTHROPIC_MESSAGES, 500, DEEP, "r"), DEEP),
        (lambda: error_shapes.read_event(Api.OPENAI_CHAT, DEEP).status, 500),
    ],
)
def test_readers_take_it_for_garbage(read: Callable[[], object], comes_to: object) -> None:
    assert read() == comes_to


def test_a_list_of_models_that_is_too_deep_is_none() -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_models(DEEP)


MAY = {
    "coordinator/canonical.py": "says of a client's body that it is too deep",
    "coordinator/doors/door_json.py": "a string that was read as a part of more",
    "coordinator/kube/conditions.py": "our own words",
    "coordinator/kube/reading.py": "cuts off what is too deep",
    "coordinator/outgoing.py": "a body that `canonical` has read",
    "coordinator/state/copies.py": "files that people name, in a command",
    "coordinator/tokens/tokenizer.py": "files of a model",
    "coordinator/translate/collect.py": "catches it itself",
}


def test_nothing_else_reads_json_of_others_by_itself() -> None:
    root = Path(__file__).parent.parent
    readers = {
        path.relative_to(root).as_posix()
        for path in (root / "coordinator").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("msgspec.json.decode", "msgspec.json.Decoder")
    }
    assert readers == set(MAY)
