"""Which engines are in the running for a model, and what of their views holds for all requests."""

from dataclasses import replace

from coordinator.engines import Engine, EngineView
from coordinator.runners import SETS_KEPT, Field, Row, field_of
from lineside.ids import EngineId
from lineside.signals import Events, Load, Status
from tests.scene import MODEL, layout_of, view

A, B, C = map(EngineId, "abc")


def version(engine: Engine) -> str:
    return engine.version


def field(*views: EngineView, before: Field | None = None) -> Field:
    return field_of(MODEL, views, layout_of(views), version, before)


def test_a_row_knows_numbers_of_its_engines_alone() -> None:
    row = Row((A, B))
    assert [row.numbers(engines) for engines in ((B, A), (C, B), (), (B, A))] == [
        (1, 0),
        (1,),
        (),
        (1, 0),
    ]


def test_a_row_remembers_no_more_sets_than_it_may() -> None:
    row = Row((A, B))
    for number in range(SETS_KEPT + 2):
        assert row.numbers((B, EngineId(str(number)))) == (1,)
    assert len(row._numbers) == 2


def test_a_field_keeps_its_row_while_its_engines_are_the_same() -> None:
    first = field(view("a"), view("b"))
    assert field(view("a", heard_age_s=0.2), view("b"), before=first).row is first.row
    assert field(view("a", away="gone"), view("b"), before=first).row.engines == ("b",)


def test_engines_that_fail_are_in_the_running_where_there_are_no_others() -> None:
    fails, well, gone = view("a", failing="it failed"), view("b"), view("c", away="gone")
    beside = field(fails, well, gone)
    assert (beside.views, beside.places) == ((well,), (1,))
    assert beside.out == ((2, gone, "away"), (0, fails, "failing"))
    alone = field(fails, gone)
    assert (alone.views, alone.places, alone.at) == ((fails,), (0,), {0: 0})
    assert alone.out == ((1, gone, "away"),)


def test_engines_are_alike_by_block_credit_and_class() -> None:
    def of(name: str, release: str = "1", **changes: object) -> EngineView:
        each = view(name, **changes)  # type: ignore[arg-type]
        return each._replace(engine=replace(each.engine, version=release))

    made = field(
        of("a"),
        of("b"),
        of("c", block_size=32),
        of("d", diverged=True),
        of("e", release="2"),
        of("f", digest_live=False),
        of("g", status=Status(Events.LIVE)),
    )
    assert made.kinds == (0, 0, 1, 2, 3, 4, 0)
    shown = [(kind.block, kind.credit < 1.0, kind.engine.id) for kind in made.kind_of]
    assert shown == [
        (16, False, "a"),
        (32, False, "c"),
        (16, True, "d"),
        (16, False, "e"),
        (0, False, "f"),
    ]


def test_loads_count_while_they_are_fresh_and_are_gathered_once() -> None:
    load = Load(running=3, waiting=2, kv_cache_usage=0.5)
    made = field(view("a", load=load, load_age_s=0.5), view("b", load=load, load_age_s=60.0))
    assert made.reported == ([2, 0], [3, 0], [0.5, None], [None, None], [0.1, 0.1])
    assert made.reported is made.reported
