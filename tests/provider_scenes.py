"""A coordinator before an engine and stand-ins for providers, with what resources say of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.config import EngineSpec
from tests import gateways, provider_stubs
from tests.fakes import MODEL, FakeEngine, fake_engines
from tests.gateways import Running
from tests.provider_stubs import AWS, KEY, REGION, Stub

EXAMPLES = Path(__file__).parents[1] / "policies/examples"
UPSTREAM = "vendor.model-v1:0"
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 5,
}
MESSAGE = CHAT
"""Anthropic's body is the same, as long as it is so simple."""

PROVIDERS_FIRST = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {{ name: first }}
spec:
  rules:
  - name: providers
    route:
      select:
      - {{ type: Provider, order: [ {order} ] }}
      - {{ type: Local }}
"""


def published(*names: str) -> dict[str, str]:
    """Return policies of the published examples."""
    return {name: (EXAMPLES / f"{name}.yaml").read_text() for name in names}


def in_order(*names: str) -> dict[str, str]:
    """Return a policy that asks providers first."""
    return {"first": PROVIDERS_FIRST.format(order=", ".join(names))}


def provider(name: str, stub: Stub, folder: Path, more: str = "", key: str = "key") -> str:
    """Return what a resource says of a stub; `key` is the file that it names for its API key."""
    (folder / "key").write_text(KEY)
    (folder / "aws").write_text(
        f"[default]\naws_access_key_id = {AWS[0]}\naws_secret_access_key = {AWS[1]}\n"
    )
    credentials = f"file: {folder}/{key}"
    if stub.type == "Bedrock":
        credentials = f"accessKey: {{ file: {folder}/aws }}"
        more += f"\n  region: {REGION}"
    return (
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceProvider\n"
        f"metadata: {{ name: {name} }}\nspec:\n  type: {stub.type}\n  baseURL: {stub.url}\n"
        f"  credentials: {{ {credentials} }}\n"
        f'  models: [ {{ name: {MODEL}, upstream: "{UPSTREAM}" }} ]\n{more}\n'
    )


@dataclass
class Scene:
    """What is there."""

    running: Running
    engine: FakeEngine
    folder: Path

    async def ask(
        self, body: Mapping[str, Any], path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[int, bytes, dict[str, Any]]:
        """Return status, body and record of an answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, answered, raw = await self.running.post(path, dict(body), named)
        return status, raw, await self.running.record(answered)

    async def providers(self) -> dict[str, Any]:
        """Return what is shown of providers, by name."""
        shown = await self.running.debug("/debug/pools")
        return {each["name"]: each for each in shown if "cooldown" in each}

    async def metric(self, start: str) -> float:
        """Return the sum of the metrics whose lines begin so."""
        async with self.running.session.get(self.running.admin + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


@asynccontextmanager
async def scene(
    folder: Path,
    stubs: Mapping[str, Stub],
    policies: Mapping[str, str],
    engine: FakeEngine | None = None,
    more: str = "",
    key: str = "key",
    **settings: Any,
) -> AsyncIterator[Scene]:
    """Run it all; `more` is added to what each provider's resource says."""
    async with (
        fake_engines(engine or FakeEngine()) as (local,),
        provider_stubs.running(*stubs.values()),
    ):
        for name, stub in stubs.items():
            (folder / f"{name}.yaml").write_text(provider(name, stub, folder, more, key))
        for name, text in policies.items():
            (folder / f"policy-{name}.yaml").write_text(text)
        async with gateways.coordinator(
            EngineSpec(url=local.url), resources=str(folder), tags_header="x-tags", **settings
        ) as running:
            yield Scene(running, local, folder)
