"""Metrics follow the records, and what is scraped has the names that dashboards use."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from coordinator.attempts import Attempt, Repeat
from coordinator.candidates import Candidate
from coordinator.engines import Engine, EngineView, ServedModel
from coordinator.metrics import Metrics
from coordinator.records import Record
from coordinator.refusal import UpstreamBroken, to_reply
from lineside.ids import EngineId, GroupId, ModelName, NodeId, TenantId

ENGINE = Engine(
    id=EngineId("a"),
    base_url="http://a",
    endpoint="a",
    group=GroupId("g"),
    models=(ServedModel(ModelName("m")),),
    node=NodeId("n"),
    events="tcp://a:5557",
)
KNOWN = EngineView(ENGINE, heard_age_s=0.1, digest_live=True)


def finished(view: EngineView = KNOWN) -> Record:
    record = Record(id="1", at=0.0, request_id="r", tenant=TenantId("t"), api="openai-chat")
    record.served_by = Candidate(
        ENGINE,
        ModelName("m"),
        view,
        overlap_tokens=96,
        uncached_tokens=30,
        own_s=0.2,
        predicted_ttft_s=0.2,
    )
    record.outcome.end = "finished"
    record.outcome.ttft_s = 0.3
    record.outcome.prompt_tokens = 126
    record.outcome.cached_tokens = 64
    record.outcome.completion_tokens = 6
    return record


def test_a_finished_request_pairs_prediction_and_outcome() -> None:
    registry = CollectorRegistry()
    Metrics(registry).ended(finished())
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket")) and sample.value
    }
    assert values == {
        ("lineside_requests_total", "openai-chat", "finished"): 1,
        ("lineside_ttft_seconds_count",): 1,
        ("lineside_ttft_seconds_sum",): 0.3,
        ("lineside_ttft_error_seconds_count", "too_short"): 1,
        ("lineside_ttft_error_seconds_sum", "too_short"): 0.3 - 0.2,
        ("lineside_prompt_tokens_total",): 126,
        ("lineside_completion_tokens_total",): 6,
        ("lineside_cached_tokens_total", "predicted"): 96,
        ("lineside_cached_tokens_total", "reported"): 64,
        ("lineside_cached_tokens_error_total", "too_many"): 32,
    }


def test_of_an_engine_whose_cache_is_unknown_nothing_was_predicted() -> None:
    registry = CollectorRegistry()
    record = finished(EngineView(replace(ENGINE, events="")))
    Metrics(registry).ended(record)
    assert (record.predicted_cached_tokens, record.speculative_tokens) == (None, None)
    counted = ("lineside_cached_tokens_total", "lineside_cached_tokens_error_total")
    for family in registry.collect():
        for sample in family.samples:
            assert not (sample.name in counted and sample.value)


def test_a_failure_is_counted_by_its_reason() -> None:
    registry = CollectorRegistry()
    record = Record(id="1", at=0.0, request_id="r", tenant=TenantId("t"), api="openai-chat")
    record.refusal = to_reply(UpstreamBroken())
    record.outcome.end = "failed"
    record.attempts.append(Attempt(EngineId("a"), Repeat.UNCERTAIN, "the connection broke"))
    Metrics(registry).ended(record)
    assert registry.get_sample_value("lineside_refusals_total", {"reason": "upstream_broken"}) == 1
    assert registry.get_sample_value("lineside_failed_attempts_total", {"repeat": "uncertain"}) == 1
