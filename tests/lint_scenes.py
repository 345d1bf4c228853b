"""What tests of lint share: the beginnings of documents, an inventory, and what lint says."""

from lineside.findings import Finding
from lineside.ids import ModelName
from policies.facts import Inventory, Model, Target
from policies.lint import lint
from policies.load import load
from policies.model import BackendType

API = "apiVersion: kinference.buoyant.io/v1alpha1"
POLICY = f"{API}\nkind: InferencePolicy\nmetadata: {{name: p}}\n"
"""Three lines."""
RULE = f"{POLICY}spec:\n  rules:\n  - name: r\n"
"""Six lines: the seventh is a field of the rule, in column 5."""
REJECT = "    reject: {message: m}\n"
ROUTE = f"{RULE}    route:\n"
"""Seven lines: the eighth is a field of the route, in column 7."""
EXCLUDE = f"{ROUTE}      exclude:\n      - name: x\n"
"""Nine lines: the tenth is a field of the exclude, in column 9."""
STAGE = f"{ROUTE}      select:\n"
"""Eight lines: the ninth is a stage."""
PROVIDER = f"{API}\nkind: InferenceProvider\nmetadata: {{name: acme}}\nspec:\n"
ANNOTATED = f"{API}\nkind: InferencePolicy\nmetadata:\n  name: p\n  annotations:\n"
"""Five lines: the sixth is an annotation, in column 5."""
LOCAL_FIRST = (
    "help: put the local stage first, or exclude providers while the pool is not saturated"
)
UNKNOWN_TOO = "help: exclude providers with an `if` on the tag, which holds while it is unknown"


def of(name: str, type_: BackendType, model: str, *pools: str) -> Target:
    return Target(name, type_, ModelName(model), frozenset({name, *pools}), {}, frozenset(pools))


CLUSTER = Inventory(
    (
        of("e0", BackendType.LOCAL, "glm", "east"),
        of("bedrock", BackendType.PROVIDER, "glm"),
    ),
    {ModelName("glm"): Model(ModelName("glm"), frozenset({"chat"}), frozenset({"large"}))},
)


def found(text: str, inventory: Inventory | None = None) -> list[Finding]:
    loaded = load([("p.yaml", text.encode())])
    assert loaded.findings == ()
    return lint(loaded.resources, inventory)


def told(text: str, inventory: Inventory | None = None) -> list[str]:
    return [line for finding in found(text, inventory) for line in str(finding).splitlines()]
