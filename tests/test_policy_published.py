"""The published examples, evaluated."""

from itertools import permutations
from pathlib import Path

import msgspec
import pytest
import yaml

from policies.facts import Inventory, Measured
from policies.model import InferencePolicy, Measure
from policies.verdict import Chosen, Denied, Empty
from tests.policy_scenes import CLUSTER, measured, request, said, verdict

QUEUED = Measure.QUEUED_PROMPTS
IDLE = measured({QUEUED: [0, 0, 0, None, None, None]})
BUSY = measured({QUEUED: [5, 5, 5, None, None, None]})


EXAMPLES = Path(__file__).parents[1] / "policies" / "examples"


def published(name: str, called: str = "") -> InferencePolicy:
    """Return a published example, perhaps under another name."""
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["metadata"]["name"] = called or name
    return msgspec.convert(document, InferencePolicy)


BURST, PII, SMART = "burst-policy", "pii-stays-local", "smart-semantic-routing"


@pytest.mark.parametrize(
    ("names", "tags", "now", "expected"),
    [
        pytest.param(
            [BURST], "", IDLE, "e0 e1 | bedrock databricks", id="burst: local while it can"
        ),
        pytest.param([BURST], "", BUSY, "bedrock databricks", id="burst: out when overloaded"),
        pytest.param(
            [PII], "-pii-detected", BUSY, "databricks | e0 e1", id="pii: out, if surely none"
        ),
        pytest.param([PII], "pii-detected", BUSY, "e0 e1", id="pii: stays"),
        pytest.param([PII], "", BUSY, "e0 e1", id="pii: stays, if it is not known"),
        pytest.param(
            [SMART],
            "complexity-low",
            BUSY,
            "e0 e1 e2 bedrock databricks databricks/qwen",
            id="smart: the small model as well",
        ),
        pytest.param([SMART], "-complexity-low", BUSY, "e0 e1", id="smart: not what is complex"),
        pytest.param([SMART], "", BUSY, "e0 e1", id="smart: nor what may be"),
        pytest.param(
            [BURST, PII, SMART],
            "pii-detected complexity-low",
            BUSY,
            "e0 e1 e2",
            id="all: pii of low complexity stays, on either model",
        ),
        pytest.param([BURST, PII, SMART], "pii-detected", IDLE, "e0 e1", id="all: pii stays"),
        pytest.param(
            [BURST, PII, SMART],
            "pii-detected",
            BUSY,
            "refused by inference/pii-stays-local/serve/pii-never-leaves-cluster",
            id="all: pii is refused under overload, and by name",
        ),
        pytest.param(
            [BURST, PII, SMART],
            "-pii-detected",
            BUSY,
            "bedrock databricks",
            id="all: other requests go out",
        ),
    ],
)
def test_the_published_examples(names: list[str], tags: str, now: Measured, expected: str) -> None:
    assert said(verdict([published(name) for name in names], request(tags=tags), now)) == expected


@pytest.mark.parametrize(
    "tags", ["pii-detected", "", "pii-detected complexity-low", "complexity-low"]
)
@pytest.mark.parametrize("now", [IDLE, BUSY], ids=["idle", "overloaded"])
def test_pii_never_leaves_whatever_the_policies_are_called(tags: str, now: Measured) -> None:
    for names in permutations(["a", "b", "c"]):
        named = [published(*pair) for pair in zip((BURST, PII, SMART), names, strict=True)]
        for policies in permutations(named):
            found = verdict(policies, request(tags=tags), now)
            assert not isinstance(found, Denied)
            if isinstance(found, Chosen):
                assert {each.target for each in found.ranked} <= {0, 1, 2}
            else:
                assert found.source.part == "pii-never-leaves-cluster"


def test_pii_is_refused_where_there_is_no_engine() -> None:
    away = Inventory(CLUSTER.targets[3:], CLUSTER.models)
    for names in permutations(["a", "b", "c"]):
        policies = [published(*pair) for pair in zip((BURST, PII, SMART), names, strict=True)]
        found = verdict(policies, request(tags="pii-detected"), inventory=away)
        assert isinstance(found, Empty)
        assert found.source.part == "pii-never-leaves-cluster"
