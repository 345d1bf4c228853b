"""JSON that is nested deeper than can be read, as clusters take it in free parts of objects."""

import json
from typing import Any

import msgspec
import pytest

from coordinator.kube.reading import MOST_DEEP, decoded
from coordinator.kube.reflection import Reflection
from coordinator.kube.written import Written, written
from policies.load import load

HEAD = '{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"5"},'


def nested(levels: int, brackets: str = "[]") -> str:
    return brackets[0] * levels + brackets[1] * levels


@pytest.mark.parametrize("levels", [1_100, 10_000, 300_000])
def test_what_is_too_deep_is_cut_off_and_the_rest_is_read(levels: int) -> None:
    odd = '"\\\\\\"[{\\\\"'
    text = f'{{"a":{odd},"b":[1,{nested(levels)},2],"c":{{"d":{nested(levels)}}},"e":3}}'
    read = decoded(text.encode(), dict[str, Any])
    assert (read["a"], read["b"][0], read["b"][2], read["e"]) == (json.loads(odd), 1, 2, 3)
    depth, inner = 0, read["c"]["d"]
    while isinstance(inner, list) and inner:
        depth, inner = depth + 1, inner[0]
    assert inner is None and depth == MOST_DEEP - 2


@pytest.mark.parametrize("text", ["[" * 5_000, "]" * 5_000, nested(5_000) + "]", "[" * 5_000 + '"'])
def test_what_is_no_json_is_none_however_deep(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decoded(text.encode(), object)


@pytest.mark.parametrize("levels", [100, 900, 960, 1_100, 10_000])
def test_an_object_that_is_too_deep_is_refused_by_itself(levels: int) -> None:
    spec = f'"spec":{{"rules":[{{"name":"r","route":{{"defaults":{{"x":{nested(levels)}}}}}}}]}}'
    line = f'{{"type":"ADDED","object":{HEAD}{spec}}}}}'.encode()
    copy: Reflection[Written] = Reflection(lambda found: written("InferencePolicy", found))
    assert copy.apply(line)
    (each,) = copy.objects.values()
    loaded = load([(each.source, each.form.document)])
    assert loaded.resources == () and len(loaded.findings) == 1
