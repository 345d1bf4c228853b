"""Third parties' API keys, and the headers they are sent: none of the client's. OpenAI's API only.

Keys come from files or the environment; they are read when resources are applied and at each look
after that, and nobody is shown one.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from multidict import CIMultiDict

from coordinator.candidates import Provider
from coordinator.credentials import read_key
from lineside import logs
from lineside.ids import EngineId
from policies.model import InferenceProvider

log = logs.get("coordinator.providers")

KEPT_HEADERS = frozenset({"content-type", "retry-after"})
"""What a client gets of a provider's headers; the rest tells of our account there."""


class ProviderKeys:
    """The keys in force. Written by `read`, read by every request to a provider."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._keys: dict[EngineId, str] = {}
        self._problems: dict[EngineId, str] = {}

    def read(self, providers: Iterable[InferenceProvider]) -> None:
        """Read all keys anew. One that cannot be read any more stays what it was."""
        before, self._keys = self._keys, {}
        for provider in providers:
            name, said = EngineId(provider.metadata.name), provider.spec.credentials
            if said is None:
                continue
            if said.file is not None:
                key, problem = read_key(Path(said.file), "credentials.file")
            else:
                key = self._environ.get(said.variable or "")
                problem = "" if key else f"`{said.variable}` is not in the environment"
            if key is None:
                key = before.get(name)
            if key:
                self._keys[name] = key
            if problem and self._problems.get(name) != problem:
                log.warning("provider key missing", provider=name, reason=problem)
            self._problems[name] = problem

    def headers(self, provider: Provider, streams: bool) -> CIMultiDict[str]:
        """Return all that a provider is sent beside the body."""
        headers = CIMultiDict({"content-type": "application/json", "accept-encoding": "identity"})
        headers["accept"] = "text/event-stream" if streams else "application/json"
        if key := self._keys.get(provider.id):
            headers["authorization"] = f"Bearer {key}"
        return headers
