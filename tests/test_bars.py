"""Which providers are out of the running, and what a request gets that none is left for."""

import random

import pytest

from coordinator.apis import Api
from coordinator.attempts import Attempt, Fault, Repeat
from coordinator.candidates import Provider
from coordinator.providers.bars import Bar, KeyMissing, bars, mask_of, none_missing
from coordinator.providers.cooldowns import FAILS_AFTER, Cooldowns
from coordinator.providers.dialects import Dialect
from coordinator.records import Record
from coordinator.refusal import NothingAllowed, NotServed, ProvidersPause, Refusal
from coordinator.route import Decision, decide
from coordinator.routed import rest_of
from coordinator.targets import Layout
from coordinator.unserved import why_unserved
from lineside.ids import EngineId, ModelName, TenantId
from policies.evaluate import Plan, compile_
from policies.facts import RequestFacts
from policies.inventory import inventory_of
from policies.load import load
from policies.model import InferencePolicy, InferenceProvider
from policies.verdict import Denied
from tests.scene import NoOutlook

MODEL = ModelName("m")
HEAD = "apiVersion: kinference.buoyant.io/v1alpha1\n"
POLICY = f"{HEAD}kind: InferencePolicy\nmetadata: {{name: p}}\n" + (
    "spec: {rules: [{name: r, route: {select: [{type: Provider, order: [claude, gpt]}]}}]}\n"
)
PROVIDERS = "---\n".join(
    f"{HEAD}kind: InferenceProvider\nmetadata: {{name: {name}}}\n"
    f"spec: {{type: {type_}, models: [{{name: m}}]}}\n"
    for name, type_ in (("claude", "Anthropic"), ("gpt", "OpenAI"))
)
CLAUDE, GPT = EngineId("claude"), EngineId("gpt")


def layout() -> Layout:
    resources = [each.resource for each in load([("p", PROVIDERS.encode())]).resources]
    found = [each for each in resources if isinstance(each, InferenceProvider)]
    backends = {
        each.metadata.name: Provider(
            EngineId(each.metadata.name), "http://x", "x", dialect=Dialect.of(each.spec)
        )
        for each in found
    }
    return Layout.of(inventory_of((), (), found, ()), {**backends})


def planned(there: Layout, policies: str) -> Plan:
    found = [each.resource for each in load([("p", policies.encode())]).resources]
    compiled = compile_([each for each in found if isinstance(each, InferencePolicy)])
    plan = compiled.bind(there.inventory).plan(RequestFacts(model=MODEL), {})
    assert not isinstance(plan, Denied)
    return plan


def decided(
    cooldowns: Cooldowns,
    api: Api = Api.OPENAI_CHAT,
    now: float = 0.0,
    key_missing: KeyMissing = none_missing,
) -> Decision:
    there = layout()
    plan = planned(there, POLICY)
    barred = bars(there, plan.targets, api, cooldowns, now, key_missing=key_missing)
    return decide(plan, (), there, NoOutlook(), random.Random(1), (), barred)


def chosen(decision: Decision) -> list[str]:
    return [each.target.id for each in decision.ranked]


def dropped(decision: Decision) -> dict[str, str]:
    found = [(each.target.id, each.dropped_by) for each in decision.dropped]
    assert len(dict(found)) == len(found), "each is named once"
    return dict(found)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        pytest.param(POLICY, {"claude": "api", "gpt": "subset"}, id="barred, and not asked for"),
        pytest.param(
            "", dict.fromkeys(("claude", "gpt"), "default/default"), id="by policies before all"
        ),
    ],
)
def test_what_is_out_for_several_reasons_is_named_once(
    policies: str, expected: dict[str, str]
) -> None:
    there = layout()
    barred = {0: Bar("api", "it has no such API", True)}
    plan = planned(there, policies)
    found = decide(plan, (), there, NoOutlook(), random.Random(1), (0, 1), barred)
    assert dropped(found) == expected


def cooling(
    *providers: EngineId, fault: Fault = Fault.BROKE, asked_s: float | None = None
) -> Cooldowns:
    cooldowns = Cooldowns()
    for provider in providers:
        for _ in range(FAILS_AFTER if asked_s is None else 1):
            cooldowns.failed(provider, 0.0, 0.0, fault, asked_s)
    return cooldowns


def test_providers_that_nothing_keeps_are_all_in_the_running() -> None:
    assert chosen(decided(Cooldowns())) == [CLAUDE, GPT]


def test_one_that_cannot_be_asked_in_an_api_is_out_and_its_reason_is_told() -> None:
    decision = decided(Cooldowns(), Api.OPENAI_EMBEDDINGS)
    assert (chosen(decision), dropped(decision)) == ([GPT], {CLAUDE: "api"})
    (claude,) = decision.dropped
    assert claude.reason == "a provider of type Anthropic cannot be asked in `openai-embeddings`"


def test_one_that_cools_down_is_out_while_there_is_another() -> None:
    decision = decided(cooling(CLAUDE))
    assert (chosen(decision), dropped(decision)) == ([GPT], {CLAUDE: "cooldown"})


def test_those_that_only_failed_are_used_where_there_is_nothing_else() -> None:
    decision = decided(cooling(CLAUDE, GPT))
    assert (chosen(decision), dropped(decision)) == ([CLAUDE, GPT], {})


def test_one_that_asked_for_its_pause_is_not_used_even_then() -> None:
    cooldowns = cooling(CLAUDE, fault=Fault.BUSY, asked_s=30.0)
    for _ in range(FAILS_AFTER):
        cooldowns.failed(GPT, 0.0, 0.0)
    decision = decided(cooldowns)
    assert (chosen(decision), dropped(decision)) == ([GPT], {CLAUDE: "cooldown"})


def keyless(*providers: EngineId) -> KeyMissing:
    return lambda provider: "`K` is not in the environment" if provider.id in providers else None


def test_one_without_its_key_is_out_and_its_reason_is_told() -> None:
    decision = decided(Cooldowns(), key_missing=keyless(CLAUDE))
    assert (chosen(decision), dropped(decision)) == ([GPT], {CLAUDE: "key"})
    (claude,) = decision.dropped
    assert claude.reason == "its key cannot be read: `K` is not in the environment"


def test_those_without_keys_are_not_used_even_where_there_is_nothing_else() -> None:
    decision = decided(cooling(CLAUDE), key_missing=keyless(CLAUDE, GPT))
    assert (chosen(decision), dropped(decision)) == ([], {CLAUDE: "key", GPT: "key"})
    assert why_unserved(MODEL, decision, 1e9) == ProvidersPause(MODEL, 10)


@pytest.mark.parametrize(
    ("cooldowns", "api", "refusal"),
    [
        pytest.param(
            cooling(CLAUDE, GPT, fault=Fault.BUSY, asked_s=30.2),
            Api.OPENAI_CHAT,
            ProvidersPause(MODEL, 31),
            id="all asked for a pause",
        ),
        pytest.param(
            cooling(GPT, fault=Fault.KEY_REFUSED),
            Api.OPENAI_EMBEDDINGS,
            ProvidersPause(MODEL, 10),
            id="one refuses our key, the other cannot be asked",
        ),
        pytest.param(Cooldowns(), Api.BEDROCK_CONVERSE, NotServed(MODEL), id="no API fits"),
    ],
)
def test_a_request_that_none_is_left_for_is_told_why(
    cooldowns: Cooldowns, api: Api, refusal: Refusal
) -> None:
    assert why_unserved(MODEL, decided(cooldowns, api), 1e9) == refusal


def test_without_a_bar_it_is_the_policys_doing() -> None:
    local = POLICY.replace("Provider, order: [claude, gpt]", "Local")
    (policy,) = [each.resource for each in load([("p", local.encode())]).resources]
    assert isinstance(policy, InferencePolicy)
    there = layout()
    plan = compile_([policy]).bind(there.inventory).plan(RequestFacts(model=MODEL), {})
    assert not isinstance(plan, Denied)
    decision = decide(plan, (), there, NoOutlook(), random.Random(1))
    assert why_unserved(MODEL, decision, 1e9) == NothingAllowed(MODEL, "default/p/r")


def test_masks_are_of_all_bars_or_of_the_certain_ones() -> None:
    found = {0: Bar("api", "", True), 2: Bar("cooldown", "", False, 1.0)}
    assert (mask_of(found), mask_of(found, certain_only=True)) == (0b101, 0b001)


@pytest.mark.parametrize(
    ("cooldowns", "left"),
    [
        pytest.param(Cooldowns(), [CLAUDE, GPT], id="in order"),
        pytest.param(cooling(CLAUDE), [GPT, CLAUDE], id="one that began to fail comes last"),
        pytest.param(
            cooling(CLAUDE, fault=Fault.BUSY, asked_s=9.0), [GPT], id="one that asked is left out"
        ),
    ],
)
def test_fallbacks_are_those_that_may_take_it_now(
    cooldowns: Cooldowns, left: list[EngineId]
) -> None:
    record = Record(id="r", at=0.0, request_id="r", tenant=TenantId("t"))
    record.decision = decided(Cooldowns())
    rest = rest_of(record, (), lambda provider: cooldowns.pause(provider, 0.0))
    assert [each.target.id for each in rest] == left
    record.attempts.append(Attempt(left[0], Repeat.SAFE, "busy"))
    rest = rest_of(record, (), lambda provider: cooldowns.pause(provider, 0.0))
    assert [each.target.id for each in rest] == left[1:]
