"""What is shown of engines' tokenizers."""

import pytest

from coordinator.apis import Api
from coordinator.config import EngineSpec
from coordinator.engines import Engine
from coordinator.servers import Found, engines_of
from coordinator.tokens.reuse import Reused
from coordinator.tokens.sources import Check
from coordinator.tokens.views import TokenizerViews, state_of
from lineside.ids import NodeId


def engine(tokenizer: str | None) -> Engine:
    spec = EngineSpec("http://e:8000", tokenizer=tokenizer)
    (made,) = engines_of(spec, Found((), "m"), NodeId("n"), 4)
    return made


@pytest.mark.parametrize(
    ("tokenizer", "checks", "expected"),
    [
        pytest.param(None, {}, Check.NO_TOKENIZER, id="none at hand"),
        pytest.param("o/n", {}, Check.UNVERIFIED, id="not compared yet"),
        pytest.param("o/n", {Api.OPENAI_CHAT: Check.SAME}, Check.SAME, id="the same"),
        pytest.param(
            "o/n",
            {Api.OPENAI_CHAT: Check.SAME, Api.OPENAI_COMPLETIONS: Check.DIFFERENT},
            Check.DIFFERENT,
            id="one that differs counts",
        ),
    ],
)
def test_the_worst_that_is_known_is_shown(
    tokenizer: str | None, checks: dict[Api, Check], expected: Check
) -> None:
    of = engine(tokenizer)
    assert state_of(of, checks) is expected
    metric, *_ = TokenizerViews(lambda: [of], lambda: {of.id: checks}, Reused).collect()
    assert {
        sample.labels["state"]: sample.value
        for sample in metric.samples
        if sample.labels["engine"] == of.id
    } == {check.value: float(check is expected) for check in Check}


def test_what_was_reused_is_counted() -> None:
    reused = Reused(reused_tokens=30, encoded_tokens=4, kept_bytes=500)
    _, *metrics = TokenizerViews(list, dict, lambda: reused).collect()
    assert {
        (sample.name, sample.labels.get("how")): sample.value
        for metric in metrics
        for sample in metric.samples
    } == {
        ("lineside_tokenizer_tokens_total", "encoded"): 4.0,
        ("lineside_tokenizer_tokens_total", "reused"): 30.0,
        ("lineside_tokenizer_kept_bytes", None): 500.0,
    }
