"""The doors as the official `openai` and `anthropic` clients find them, unmodified."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from coordinator.config import EngineSpec
from tests import gateways
from tests.actors import Actor, acting
from tests.doors import Sim
from tests.envoy_front import behind_envoy
from tests.envoys import needs_envoy
from tests.gateways import Running
from tests.waiting import until

APIStatusError: TypeAlias = openai.APIStatusError | anthropic.APIStatusError

DOORS = ["http", pytest.param("envoy", marks=needs_envoy)]
"""Our own, and a real Envoy that asks us. Without one the tests through it are skipped, and said
to be."""

SECRET = "clients-own-secret"
"""What a client shows the door, and no backend may see."""

UPSTREAM = "vendor.model-v1:0"
PROVIDER_KEY = "providers-key"

EMBEDDER = "embedder"
"""The model of a simulated engine that embeds."""

KINDS = {"gpt": "OpenAI", "claude": "Anthropic", "nova": "Bedrock"}
"""Models that providers serve, each of one type."""

PROVIDER = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: {{ name: {model} }}
spec:
  type: {kind}
  baseURL: {url}
  {more}
  credentials: {{ file: {key} }}
  models: [ {{ name: {model}, upstream: "{upstream}" }} ]
"""

ANY = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: any }
spec:
  rules:
  - name: forbidden
    matches: [ { headers: { x-project: secret } } ]
    reject: { status: 403, message: this project may not be asked about }
  - name: any
    route: { select: [ { type: Provider }, { type: Local } ] }
"""


@dataclass
class Front:
    """A door, and both clients of it. They never try again by themselves."""

    url: str
    running: Running
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic
    tries_503: bool = False
    """A gateway in front tries three more times by itself where an engine answers 503."""
    engines: list[Sim] = field(default_factory=list)
    """Behind it, if they are simulated ones that generate."""

    async def working(self) -> int:
        """Return how many requests the engines work on."""
        return sum([await engine.open() for engine in self.engines])

    async def records(self) -> list[dict[str, Any]]:
        """Return the decisions, the latest first."""
        found: list[dict[str, Any]] = await self.running.debug("/debug/decisions")
        return found

    async def is_quiet(self) -> bool:
        """Whether nothing is accounted any more, at engines and at providers."""
        ended = all(record["outcome"]["end"] for record in await self.records())
        return ended and not any(await self.running.inflight())


@asynccontextmanager
async def front_of(running: Running, url: str, timeout_s: float = 10.0) -> AsyncIterator[Front]:
    """Give clients of a door."""
    how: Any = {"api_key": SECRET, "max_retries": 0, "timeout": timeout_s}
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", **how) as openai,
        AsyncAnthropic(base_url=url, **how) as anthropic,
    ):
        yield Front(url, running, openai, anthropic, url != running.http)


@dataclass
class Stage:
    """Actors, and a door before them."""

    front: Front
    engine: Actor
    providers: dict[str, Actor]

    def actor(self, model: str) -> Actor:
        return self.engine if model == "local" else self.providers[model]


@asynccontextmanager
async def stage(folder: Path, door: str, **settings: Any) -> AsyncIterator[Stage]:
    """Run an engine, a provider of each type, a coordinator, and a door of it."""
    engine = Actor(models=("local",))
    providers = {model: Actor() for model in KINDS}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(acting(engine, *providers.values()))
        write_resources(folder, providers)
        specs = [EngineSpec(url=engine.url)]
        running, url = await stack.enter_async_context(
            opened(door, specs, providers, resources=str(folder), **settings)
        )
        front = await stack.enter_async_context(front_of(running, url))
        yield Stage(front, engine, providers)


def write_resources(folder: Path, providers: dict[str, Actor]) -> None:
    (folder / "key").write_text(PROVIDER_KEY)
    for model, actor in providers.items():
        more = "region: eu-west-1" if KINDS[model] == "Bedrock" else ""
        text = PROVIDER.format(
            model=model, kind=KINDS[model], url=actor.url, more=more, key=folder / "key",
            upstream=UPSTREAM,
        )  # fmt: skip
        (folder / f"{model}.yaml").write_text(text)
    (folder / "policy.yaml").write_text(ANY)


@asynccontextmanager
async def opened(
    door: str, specs: Sequence[EngineSpec], providers: dict[str, Actor], **settings: Any
) -> AsyncIterator[tuple[Running, str]]:
    """Run a coordinator with one of its doors; give it and where clients ask."""
    if door == "envoy":
        urls = {name: actor.url for name, actor in providers.items()}
        async with behind_envoy(specs, urls, **settings) as found:
            yield found
        return
    async with gateways.coordinator(*specs, **settings) as running:
        await until(running.ready)
        yield running, running.http


# === what clients ask and are told ===


MODELS = ["local", *KINDS]
"""Served by an engine, and by providers of OpenAI's, Anthropic's and Bedrock's API."""

ASK: list[Any] = [{"role": "user", "content": "hello"}]


async def chat(staged: Stage, **more: Any) -> Any:
    """Ask as `openai` does."""
    asked: Any = {"model": "local", "messages": ASK, "max_tokens": 5} | more
    return await staged.front.openai.chat.completions.create(**asked)


async def message(staged: Stage, **more: Any) -> Any:
    """Ask as `anthropic` does."""
    asked: Any = {"model": "local", "messages": ASK, "max_tokens": 5} | more
    return await staged.front.anthropic.messages.create(**asked)


def said(error: APIStatusError) -> str:
    """Return the message as the API carries it, and hold its shape against the API's."""
    body: Any = error.body
    if isinstance(error, openai.APIStatusError):
        assert {"message", "type", "param", "code"} <= body.keys(), body
        told: str = body["message"]
    else:
        assert body["type"] == "error"
        assert {"message", "type"} <= body["error"].keys()
        told = body["error"]["message"]
    assert told in str(error)
    assert error.request_id
    return told


async def breaks(staged: Stage, words: str, of_openai: Any, of_anthropic: Any) -> None:
    """Read streams that do not come to their end: text, then an error, for both clients."""

    async def chats(model: str) -> str:
        text = ""
        with pytest.raises(of_openai, match=words):
            async for chunk in await chat(staged, model=model, stream=True):
                text += chunk.choices[0].delta.content or ""
        return text

    async def messages(model: str) -> str:
        text = ""
        with pytest.raises(of_anthropic, match=words):
            async for event in await message(staged, model=model, stream=True):
                text += event.delta.text if event.type == "content_block_delta" else ""
        return text

    for text in await asyncio.gather(*map(chats, MODELS), *map(messages, MODELS)):
        assert text
        assert text == "abcdefghij"[: len(text)]
    await until(staged.front.is_quiet)
