"""What a complete answer teaches: of its engine's prefills, of answers, of providers. Pure."""

from coordinator.engines import Engine
from coordinator.limits import Usage
from coordinator.load.answers import Answers
from coordinator.load.predict import Predictor
from coordinator.records import Record
from lineside.ids import ModelName


def learn(
    predictor: Predictor,
    answers: Answers,
    record: Record,
    usage: Usage,
    own_s: float | None,
    ttft_s: float | None,
    took_s: float,
) -> None:
    """Take an answer that is complete.

    `own_s`: what its prefill took, where that could be told. `ttft_s` and `took_s`: from the choice
    of the backend to its first token, where that is known, and to the end.
    """
    candidate, outcome = record.served_by, record.outcome
    if candidate is None or not record.comparable:
        return
    target, tokens = candidate.target, usage.completion_tokens
    if tokens:
        answers.note_tokens(record.tenant, ModelName(record.model), tokens)
    if not isinstance(target, Engine):
        answers.note_provider(target.id, candidate.model, ttft_s, took_s)
        return
    if own_s is not None and usage.prompt_tokens is not None:
        said = usage.cached_tokens
        cached = candidate.cached_tokens if said is None else said
        predictor.learn(target, max(0, usage.prompt_tokens - cached), cached, own_s)
    if tokens and tokens > 1 and outcome.ttft_s is not None and outcome.duration_s is not None:
        itl_s = max(0.0, outcome.duration_s - outcome.ttft_s) / (tokens - 1)
        answers.note_speed(predictor.class_of(target), candidate.outstanding, itl_s)
