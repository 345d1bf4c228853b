"""Copies of a store: what is in them, what is no copy, and what is not written over."""

import pytest

from coordinator.state import copies
from coordinator.state.copies import BadCopy, Conflict, Copy
from coordinator.state.store import Put
from coordinator.state.stores.sqlite import SqliteStore


async def test_what_lasts_comes_back_as_it_was() -> None:
    one, other = SqliteStore(":memory:"), SqliteStore(":memory:")
    values = {f"k/{n:03}": bytes([n % 256]) * n for n in range(250)}
    for key, value in values.items():
        await one.transact({}, [Put(key, value)])
    lease = await one.grant(60)
    await one.transact({}, [Put("members/a", b"", lease), Put("leaders/b", b"", lease)])
    copy = await copies.export(one)
    assert copy == Copy(251, values)
    assert copies.read(copy.lines()) == copy
    assert await copies.put_back(other, copy, replace=False) == 250
    assert (await copies.export(other)).values == values
    assert await copies.put_back(other, copy, replace=False) == 0
    await one.close()
    await other.close()


async def test_another_value_is_replaced_when_asked_for_alone() -> None:
    store = SqliteStore(":memory:")
    await store.transact({}, [Put("a", b"there"), Put("b", b"same")])
    copy = Copy(7, {"a": b"new", "b": b"same", "c": b"new"})
    with pytest.raises(Conflict, match=r"^a$"):
        await copies.put_back(store, copy, replace=False)
    assert (await copies.export(store)).values == {"a": b"there", "b": b"same"}
    assert await copies.put_back(store, copy, replace=True) == 2
    assert (await copies.export(store)).values == copy.values
    await store.close()


HEAD = b'{"lineside_store":1,"revision":1,"keys":1}\n'


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        pytest.param([], "does not begin", id="empty"),
        pytest.param([b"{}"], "line 1 is none", id="another file"),
        pytest.param([HEAD.replace(b":1,", b":2,", 1)], "does not begin", id="another format"),
        pytest.param([HEAD], "1 keys were written, 0 are there", id="cut off"),
        pytest.param([HEAD, b'{"key":"k","value":"!"}'], "line 2 is none", id="no base64"),
        pytest.param([HEAD, b"\xff"], "line 2 is none", id="no text"),
    ],
)
def test_what_is_no_copy_is_refused(lines: list[bytes], why: str) -> None:
    with pytest.raises(BadCopy, match=why):
        copies.read(lines)
