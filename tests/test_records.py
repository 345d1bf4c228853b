"""Records are kept in a bounded ring and found by what they say."""

from coordinator.records import Record, Records
from coordinator.refusal import Draining, to_reply
from lineside.ids import TenantId


def record(name: str, tenant: str = "t", model: str = "m", refused: bool = False) -> Record:
    made = Record(id=name, at=0.0, request_id="r", tenant=TenantId(tenant), model=model)
    if refused:
        made.refusal = to_reply(Draining())
    return made


def test_the_oldest_goes_first() -> None:
    records = Records(capacity=2)
    for name in "abc":
        records.add(record(name))
    assert records.get("a") is None
    assert [kept.id for kept in records.latest()] == ["c", "b"]


def test_records_are_found_by_tenant_model_and_refusal() -> None:
    records = Records()
    for each in (
        record("a"),
        record("b", tenant="u"),
        record("c", model="n"),
        record("d", refused=True),
    ):
        records.add(each)
    found = {
        "tenant": records.latest(tenant="u"),
        "model": records.latest(model="n"),
        "refused": records.latest(refused=True),
        "served": records.latest(refused=False, limit=2),
    }
    assert {by: [each.id for each in some] for by, some in found.items()} == {
        "tenant": ["b"],
        "model": ["c"],
        "refused": ["d"],
        "served": ["c", "b"],
    }
