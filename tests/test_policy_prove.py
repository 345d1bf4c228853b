"""The prover never says `holds` where the evaluator gets there; what it shows was evaluated."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.policy_prove import counterexample_json
from lineside.ids import ModelName
from policies.confirm import measured
from policies.evaluate import compile_
from policies.facts import Inventory, Model, Target, Truth
from policies.globs import any_of
from policies.load import load
from policies.model import BackendSelector, BackendType, InferencePolicy, Measure
from policies.prove import Counterexample, Holds, Undecided, prove
from policies.state import ClusterState, cluster_of
from policies.trial import tried as explained
from policies.verdict import Chosen, Denied
from tests import policy_strategies as drawn

EXAMPLES = Path(__file__).parent.parent / "policies" / "examples"
PUBLISHED = ("burst-policy", "pii-stays-local", "smart-semantic-routing")
HEAD = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\n"
PROVIDER = BackendSelector(type=BackendType.PROVIDER)
ALL_LENGTHS = "[{inputTokens: {atMost: 9}}, {inputTokens: {atLeast: 10}}]"
GUARD = "{name: g, if: {tag: pii}, drop: {backend: {type: Provider}}}"


def example(name: str) -> InferencePolicy:
    [located] = load([(name, (EXAMPLES / f"{name}.yaml").read_bytes())]).resources
    assert isinstance(located.resource, InferencePolicy)
    return located.resource


def policies(*specs: str) -> list[InferencePolicy]:
    """Return policies `p0`, `p1`, ... of specs in YAML."""
    texts = [f"{HEAD}metadata: {{name: p{n}}}\nspec: {spec}\n" for n, spec in enumerate(specs)]
    loaded = load([("p.yaml", "---\n".join(texts).encode())])
    assert loaded.findings == ()
    return [
        each.resource for each in loaded.resources if isinstance(each.resource, InferencePolicy)
    ]


def target(name: str, type_: BackendType, *pools: str) -> Target:
    return Target(name, type_, ModelName("glm"), frozenset({name, *pools}), {}, frozenset(pools))


GLM = {ModelName("glm"): Model(ModelName("glm"), classes=frozenset({"large"}))}
ENGINE, BEDROCK = target("e0", BackendType.LOCAL, "east"), target("bedrock", BackendType.PROVIDER)
CLUSTER = Inventory((ENGINE, BEDROCK), GLM)


def proved(
    given: list[InferencePolicy],
    inventory: Inventory | None = None,
    never: BackendSelector = PROVIDER,
) -> str:
    """Say what was proved in a word, or by which rule and stage the request gets there."""
    proof = prove(given, "pii", never, inventory)
    match proof:
        case Holds(unknown=None):
            return "holds"
        case Holds(unknown=Counterexample() as found):
            return f"unless unknown: {_way(given, found, never)}"
        case Counterexample():
            return _way(given, proof, never)
        case Undecided(why):
            return why
    raise AssertionError(proof)


def _way(given: list[InferencePolicy], found: Counterexample, never: BackendSelector) -> str:
    assert is_confirmed(given, found, never)
    return str(found.reached.source)


def is_confirmed(
    given: list[InferencePolicy], found: Counterexample, never: BackendSelector
) -> bool:
    """Whether the evaluator sends the request of a counterexample where it must not go."""
    reached = found.reached
    assert reached.facts.tags[found.tag] is found.truth
    plan = compile_(given).bind(reached.inventory).plan(reached.facts, reached.pools)
    assert not isinstance(plan, Denied)
    verdict = plan.decide(measured(reached.measured), Random(1), reached.out)
    assert isinstance(verdict, Chosen)
    assert not reached.out >> reached.place & 1
    places = [each.target for each in verdict.ranked]
    return reached.place in places and takes(never, reached.target)


def takes(selector: BackendSelector, target: Target) -> bool:
    return (
        (selector.type is None or target.type is selector.type)
        and (selector.names is None or any_of(selector.names)(target.names))
        and all(target.labels.get(key) == value for key, value in (selector.labels or {}).items())
    )


# --- the published examples -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["pii-stays-local"], "holds"),
        (["burst-policy"], "inference/burst-policy/burst-to-cloud/select[1]"),
        (
            ["smart-semantic-routing"],
            "inference/smart-semantic-routing/low-complexity-consider-qwen/select[0]",
        ),
        (list(PUBLISHED), "holds"),
    ],
)
def test_the_published_examples(names: list[str], expected: str) -> None:
    given = [example(name) for name in names]
    proof = prove(given, "pii-detected", PROVIDER)
    if isinstance(proof, Counterexample):
        assert is_confirmed(given, proof, PROVIDER)
        assert str(proof.reached.source) == expected
    else:
        assert (proof, expected) == (Holds(targets=1, unknown=None), "holds")


@pytest.mark.parametrize("names", list(permutations("abc")), ids="".join)
def test_all_three_examples_hold_under_any_names(names: tuple[str, ...]) -> None:
    given = [
        msgspec.structs.replace(
            policy, metadata=msgspec.structs.replace(policy.metadata, name=name)
        )
        for policy, name in zip(map(example, PUBLISHED), names, strict=True)
    ]
    assert prove(given, "pii-detected", PROVIDER) == Holds(targets=1, unknown=None)


def test_a_counterexample_is_one_sentence() -> None:
    given = policies("{rules: [{name: r, route: {select: [{type: Provider, names: [acme]}]}}]}")
    proof = prove(given, "pii", PROVIDER)
    assert isinstance(proof, Counterexample)
    assert proof.sentence == (
        "a request for `some-model` with tag `pii` can be sent to provider `acme` by "
        "`default/p0/r/select[0]`"
    )


# --- one way at a time ----------------------------------------------------------------------------


WAYS = [
    pytest.param(
        ["{rules: [{name: r, route: {select: [{type: Local}, {type: Provider}]}}]}"],
        "default/p0/r/select[1]",
        id="a fallback counts",
    ),
    pytest.param(
        [
            f"{{rules: [{{name: r, route: {{exclude: [{GUARD}]}}}}]}}",
            "{rules: [{name: s, route: {}}]}",
        ],
        "holds",
        id="a guard of one policy holds for the route of another",
    ),
    pytest.param(
        [
            f"{{mode: Shadow, rules: [{{name: r, route: {{exclude: [{GUARD}]}}}}]}}",
            "{rules: [{name: s, route: {}}]}",
        ],
        "default/p1/s/default",
        id="a guard in shadow does not",
    ),
    pytest.param(
        [
            f"{{rules: [{{name: r, matches: [{{tenant: a}}], route: {{exclude: [{GUARD}]}}}}]}}",
            "{rules: [{name: s, route: {}}]}",
        ],
        "default/p1/s/default",
        id="a guard of a rule that does not match does not",
    ),
    pytest.param(
        [
            f"{{rules: [{{name: r, matches: [{{tag: pii}}], route: {{exclude: [{GUARD}]}}}}]}}",
            "{rules: [{name: s, route: {}}]}",
        ],
        "unless unknown: default/p1/s/default",
        id="a guard behind a match on its tag is passed by while the tag is unknown",
    ),
    pytest.param(
        ["{rules: [{name: r, matches: [{tag: pii}], reject: {message: m}}, {name: s, route: {}}]}"],
        "unless unknown: default/p0/s/default",
        id="so is a rejection",
    ),
    pytest.param(
        ["{rules: [{name: r, matches: [{tags: {none: [pii]}}], route: {}}]}"],
        "holds",
        id="only requests that lack the tag are routed to providers",
    ),
    pytest.param(
        [
            "{rules: [{name: r, route: {exclude: [{name: x, drop: {backend: {type: Provider}, "
            "cost: {atLeast: 0}}}]}}]}"
        ],
        "default/p0/r/default",
        id="a bound drops nothing while its number is unknown",
    ),
    pytest.param(
        [
            "{rules: [{name: r, route: {exclude: [{name: x, drop: {backend: {type: Provider}}}], "
            "onEmpty: NextRule}}, {name: s, route: {}}]}"
        ],
        "holds",
        id="an exclude is carried on to the next rule",
    ),
    pytest.param(
        [
            "{rules: [{name: r, route: {select: [{type: Local}], onEmpty: NextRule}}, "
            "{name: s, route: {}}]}"
        ],
        "default/p0/s/default",
        id="where nothing is left the next rule sends it",
    ),
    pytest.param(
        ["{rules: [{name: r, route: {select: [{type: Local}]}}, {name: s, route: {}}]}"],
        "holds",
        id="or refuses, which is the default",
    ),
    pytest.param(
        [
            "{rules: [{name: r, route: {select: [{split: [{backend: a, weight: 1}, "
            "{backend: b, weight: 0}]}], exclude: [{name: x, drop: {backend: {names: [a]}}}]}}]}"
        ],
        "holds",
        id="a share without weight gets nothing",
    ),
    pytest.param(
        [
            "{rules: [{name: r, matches: [{model: 'glm*'}], route: {exclude: [" + GUARD + "]}}, "
            "{name: s, matches: [{model: glm-5}], route: {}}]}"
        ],
        "holds",
        id="a guard on a wider glob covers a name",
    ),
    pytest.param(
        [
            "{rules: [{name: r, matches: [{model: glm-5}], route: {exclude: [" + GUARD + "]}}, "
            "{name: s, matches: [{model: 'glm*'}], route: {}}]}"
        ],
        "default/p0/s/default",
        id="a guard on a name does not cover a wider glob",
    ),
    pytest.param(
        [
            f"{{rules: [{{name: r, matches: {ALL_LENGTHS}, "
            "route: {exclude: [" + GUARD + "]}}, {name: s, route: {}}]}"
        ],
        "default/p0/s/default",
        id="guards for all lengths miss the unknown one",
    ),
    pytest.param(
        [
            f"{{rules: [{{name: r, matches: {ALL_LENGTHS}, "
            "route: {exclude: ["
            + GUARD
            + "]}}, {name: s, matches: [{inputTokens: {lessThan: 99}}], "
            "route: {}}]}"
        ],
        "holds",
        id="which a rule with a bound never sees",
    ),
    pytest.param(
        [
            "{rules: [{name: r, route: {exclude: [{name: x, drop: {models: {names: [some-model], "
            "classes: [some-model]}}}]}}]}"
        ],
        "default/p0/r/default",
        id="whatever model is asked for first",
    ),
    pytest.param(
        [
            "{rules: [{name: r, matches: [{model: a}], route: {exclude: [" + GUARD + "]}}, "
            "{name: s, matches: [{model: b}], route: {exclude: [{name: x, drop: {models: "
            "{names: [b], classes: [b]}}}]}}]}"
        ],
        "holds",
        id="no backend serves a model under a name that it must not have",
    ),
    pytest.param(
        ["{rules: [{name: r, matches: [{inputTokens: {}}], route: {}}]}"],
        "default/p0/r/default",
        id="a bound that says nothing holds for any length that is known",
    ),
    pytest.param(
        ["{rules: [{name: r, matches: [{pool: {saturated: true}}], route: {}}]}"],
        "default/p0/r/default",
        id="once the pools are saturated",
    ),
    pytest.param(
        [
            "{rules: [{name: r, matches: [{headers: {X-Beta: 'on*'}, api: '*chat', stream: true, "
            "tenant: 't-*'}], route: {}}]}"
        ],
        "default/p0/r/default",
        id="with a header, an API, a tenant",
    ),
]


@pytest.mark.parametrize(("specs", "expected"), WAYS)
def test_each_way_is_found_or_closed(specs: list[str], expected: str) -> None:
    assert proved(policies(*specs)) == expected


IN_A_CLUSTER = [
    pytest.param(
        "{rules: [{name: r, route: {select: [{type: Local}, {type: Provider, order: [acme]}]}}]}",
        "holds",
        id="a provider that does not exist",
    ),
    pytest.param(
        "{rules: [{name: r, route: {select: [{type: Local}], onEmpty: NextRule}}, "
        "{name: s, route: {}}]}",
        "default/p0/s/default",
        id="an engine that nothing can drop may be out",
    ),
    pytest.param(
        "{rules: [{name: r, route: {select: [{type: Local}]}}, {name: s, route: {}}]}",
        "holds",
        id="where nothing is left it is refused, which is the default",
    ),
    pytest.param(
        "{rules: [{name: r, route: {onEmpty: NextRule, exclude: [{name: x, drop: {models: "
        "{names: [qwen]}}}]}}, {name: s, route: {select: [{type: Provider}]}}]}",
        "default/p0/r/default",
        id="the target itself may not be out: the first rule has it",
    ),
    pytest.param(
        "{rules: [{name: r, route: {select: [{type: Local}], onEmpty: NextRule, exclude: ["
        "{name: x, drop: {queuedPrompts: {greaterThan: 2}}}]}}, {name: s, route: {}}]}",
        "default/p0/s/default",
        id="an engine is there, and a bound may drop it",
    ),
    pytest.param(
        "{rules: [{name: r, route: {select: [{type: Local}], onEmpty: NextRule, exclude: ["
        "{name: x, drop: {queuedPrompts: {greaterThan: 2, lessThan: 2}}}]}}, "
        "{name: s, route: {}}]}",
        "default/p0/s/default",
        id="which is so too where no number is within the bounds",
    ),
    pytest.param(
        "{rules: [{name: r, route: {select: [{type: Local}], onEmpty: NextRule}}, "
        "{name: s, route: {select: [{type: Local}], onEmpty: NextRule, exclude: ["
        "{name: x, drop: {cost: {lessThan: 2}}}]}}, {name: t, route: {exclude: ["
        "{name: g, if: {tag: a}, drop: {pools: [east], queuedPrompts: {greaterThan: 2}}}]}}]}",
        "default/p0/t/default",
        id="a guard of the last rule may drop it from the first",
    ),
    pytest.param(
        "{rules: [{name: r, matches: [{model: large, pool: {name: west, saturated: false}}], "
        "route: {}}]}",
        "default/p0/r/default",
        id="by a class, and the state of a pool",
    ),
    pytest.param(
        "{rules: [{name: r, matches: [{model: qwen}], route: {}}]}",
        "holds",
        id="a model that nobody serves",
    ),
    pytest.param(
        "{rules: [{name: r, matches: [{model: qwen}], route: {consider: [{models: "
        "{names: [glm]}}]}}]}",
        "default/p0/r/default",
        id="a name that only `consider` gives a meaning to",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), IN_A_CLUSTER)
def test_with_an_inventory_only_what_exists_counts(spec: str, expected: str) -> None:
    assert proved(policies(spec), CLUSTER) == expected


def test_engines_are_measured_so_that_the_counterexample_is_the_winner() -> None:
    proof = prove([example("burst-policy")], "pii", PROVIDER, CLUSTER)
    assert isinstance(proof, Counterexample)
    reached = proof.reached
    assert (reached.target, reached.position) == (BEDROCK, 0)
    assert reached.measured == [
        {Measure.QUEUED_PROMPTS: 3.0},
        {Measure.QUEUED_PROMPTS: 0.0, Measure.RUNNING_PROMPTS: 0.0},
    ]


LOCAL_FIRST = (
    "{rules: [{name: local-first, matches: [{tags: {all: [pii]}}], route: {consider: "
    "[{backend: {type: Local}}], onEmpty: NextRule}}, {name: cloud, route: {consider: "
    "[{backend: {type: Provider}}]}}]}"
)


def test_an_engine_that_is_away_leaves_a_rule_empty() -> None:
    proof = prove(policies(LOCAL_FIRST), "pii", PROVIDER, CLUSTER)
    assert isinstance(proof, Counterexample)
    assert (proof.reached.place, proof.reached.out) == (1, 0b01)
    assert proof.sentence == (
        "a request for `glm` with tag `pii` can be sent to provider `bedrock` by "
        "`default/p0/cloud/default` while others are not available"
    )


def test_a_backend_is_out_with_all_its_models_or_with_none() -> None:
    """That a rule is left without the provider's other model needs the provider to be out."""
    other = replace(BEDROCK, model=ModelName("qwen"))
    models = GLM | {ModelName("qwen"): Model(ModelName("qwen"))}
    cluster = Inventory((ENGINE, other, BEDROCK), models)
    given = policies(
        "{rules: [{name: r, route: {consider: [{models: {names: [qwen]}}, {backend: "
        "{type: Local}}], onEmpty: NextRule}}, {name: s, route: {}}]}"
    )
    assert proved(given, cluster) == "default/p0/r/default"  # by the other model, never by `s`


def test_a_counterexample_can_be_explained() -> None:
    proof = prove(policies(LOCAL_FIRST), "pii", PROVIDER, CLUSTER)
    assert isinstance(proof, Counterexample)
    state = msgspec.convert(counterexample_json(proof)["state"], ClusterState)
    assert [engine.available for engine in state.engines] == [False]
    trial = explained(policies(LOCAL_FIRST), cluster_of([], state), proof.reached.facts)
    assert [winner.id for winner in trial.winners] == ["bedrock"]


NEVER = [
    pytest.param(BackendSelector(names=("bed*",)), "default/p0/r/default", id="a name"),
    pytest.param(BackendSelector(labels={"zone": "eu"}), "default/p0/r/default", id="a label"),
    pytest.param(BackendSelector(type=BackendType.LOCAL), "default/p0/r/default", id="engines"),
    pytest.param(BackendSelector(names=()), "holds", id="nobody"),
]


@pytest.mark.parametrize(("never", "expected"), NEVER)
def test_backends_are_forbidden_in_other_ways(never: BackendSelector, expected: str) -> None:
    assert proved(policies("{rules: [{name: r, route: {}}]}"), never=never) == expected


def test_the_default_route_can_be_the_one() -> None:
    assert proved([]) == "holds"  # it has no providers
    assert proved([], never=BackendSelector(names=("east",))) == "default/default/default"


def test_what_is_not_settled_is_said() -> None:
    globs = ", ".join(f"'*{letter}{letter}*'" for letter in "abcdefghijklmnop")
    given = policies(f"{{rules: [{{name: r, route: {{consider: [{{pools: [{globs}]}}]}}}}]}}")
    assert prove(given, "pii", PROVIDER) == Undecided("the policies tell too many names apart")


# --- any policies ---------------------------------------------------------------------------------


def search(rng: Random, scene: "Drawn", truth: Truth, tries: int) -> Target | None:
    """Look for a request that gets where it must not; states and who is out are random."""
    compiled = compile_(scene.policies)
    bound = None if scene.inventory is None else compiled.bind(scene.inventory)
    for _ in range(tries):
        known = scene.inventory or drawn.inventory(rng)
        request = drawn.request(rng)
        request = msgspec.structs.replace(request, tags={**request.tags, "pii": truth})
        plan = (bound or compiled.bind(known)).plan(request, drawn.pools(rng))
        if isinstance(plan, Denied):
            continue
        out = rng.getrandbits(len(known.targets) + 1) if rng.random() < 0.7 else 0
        verdict = plan.decide(drawn.state(rng, known).measured(), rng, out)
        for each in verdict.ranked if isinstance(verdict, Chosen) else ():
            if takes(scene.never, known.targets[each.target]):
                return known.targets[each.target]
    return None


@dataclass(frozen=True)
class Drawn:
    """Policies, what must not be reached, and the cluster where one is given."""

    policies: list[InferencePolicy]
    never: BackendSelector
    inventory: Inventory | None


FORBIDDEN = (
    PROVIDER,
    PROVIDER,
    BackendSelector(type=BackendType.LOCAL),
    BackendSelector(names=("bedrock",)),
    BackendSelector(names=("e*", "east")),
    BackendSelector(labels={"zone": "a"}),
)


PASSED_BY = (
    "{rules: [{name: r, matches: [{tag: pii}], route: {select: [{type: Local}], "
    "onEmpty: NextRule}}, {name: s, route: {ROUTE}}]}"
)
"""Safe as long as some engine is there: what a prover is easily wrong about."""


def tried(seed: int, tries: int, first: str = "") -> Counter[str]:
    """Prove something of random policies, and try to refute it; count what was said."""
    rng = Random(seed)
    given, never = drawn.policies(rng), rng.choice(FORBIDDEN)
    if first:
        route = rng.choice(("", "select: [{type: Provider}]", "onEmpty: NextRule"))
        given = [*policies(first.replace("ROUTE", route)), *given]
    said: Counter[str] = Counter()
    for inventory in (drawn.inventory(rng), None):
        proof = prove(given, "pii", never, inventory)
        outcomes = [(Truth.TRUE, proof)]
        if isinstance(proof, Holds):
            outcomes.append((Truth.UNKNOWN, proof.unknown or proof))
        for truth, outcome in outcomes:
            said[type(outcome).__name__] += 1
            if isinstance(outcome, Counterexample):
                assert is_confirmed(given, outcome, never)
            elif isinstance(outcome, Holds):
                assert search(rng, Drawn(given, never, inventory), truth, tries) is None
    return said


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_what_is_proved_no_search_refutes(seed: int) -> None:
    tried(seed, tries=15)


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_no_rule_is_taken_to_have_an_engine_that_may_be_out(seed: int) -> None:
    tried(seed, tries=15, first=PASSED_BY)


def test_hardly_anything_is_left_undecided() -> None:
    """Of thousands of random sets none was; a change that leaves many so is a mistake."""
    said = sum((tried(seed, tries=0) for seed in range(60)), Counter[str]())
    assert said["Undecided"] == 0
    assert said["Counterexample"] > 20 < said["Holds"]
