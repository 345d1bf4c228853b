"""Which GPUs serve which engine, as metrics."""

from dataclasses import replace

from coordinator.gpu_views import GpuViews
from tests.scene import view


def test_what_is_known_of_engines_gpus_has_series_and_what_is_not_has_none() -> None:
    known, unknown = view("a", gpu_utilization=0.9), view("b")
    two = known._replace(engine=replace(known.engine, gpus=("GPU-a", "GPU-b")))
    gpus, busy = GpuViews(lambda: [two, unknown]).collect()
    name = known.engine.id
    assert [(each.labels, each.value) for each in gpus.samples] == [
        ({"engine": name, "uuid": "GPU-a"}, 1.0),
        ({"engine": name, "uuid": "GPU-b"}, 1.0),
    ]
    assert [(each.labels, each.value) for each in busy.samples] == [({"engine": name}, 0.9)]
