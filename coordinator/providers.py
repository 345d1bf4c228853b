"""Third parties' API keys, and the headers they are sent: none of the client's. OpenAI's API only.

Keys come from files or the environment; they are read when resources are applied and at each look
after that, and nobody is shown one.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from multidict import CIMultiDict

from coordinator.candidates import Provider
from coordinator.credentials import read_key
from coordinator.rules import address
from lineside import logs
from lineside.ids import EngineId
from policies.model import Credentials, InferenceProvider

log = logs.get("coordinator.providers")

KEPT_HEADERS = frozenset({"content-encoding", "content-type", "retry-after"})
"""What a client gets of a provider's headers; the rest tells of our account there."""


class _Whose(NamedTuple):
    """Who gets a key, and where it is from."""

    address: str
    credentials: Credentials


class _Known(NamedTuple):
    whose: _Whose
    key: str


class ProviderKeys:
    """The keys in force. Written by `read`, read by every request to a provider."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._keys: dict[EngineId, _Known] = {}
        self._problems: dict[EngineId, str] = {}

    def read(self, providers: Iterable[InferenceProvider]) -> None:
        """Read all keys anew. One that cannot be read any more stays what it was.

        Not where the provider is elsewhere now, or its key is: nobody gets another one's key.
        """
        before, keys = self._keys, dict[EngineId, _Known]()
        for provider in providers:
            name, spec = EngineId(provider.metadata.name), provider.spec
            if spec.credentials is None:
                continue
            whose = _Whose(address(spec), spec.credentials)
            key, problem = self._read(spec.credentials)
            if key is None and name in before and before[name].whose == whose:
                key = before[name].key
            if key:
                keys[name] = _Known(whose, key)
            if problem and self._problems.get(name) != problem:
                log.warning("provider key missing", provider=name, reason=problem)
            self._problems[name] = problem
        self._keys = keys  # at once: requests read it meanwhile

    def headers(self, provider: Provider, streams: bool) -> CIMultiDict[str]:
        """Return all that a provider is sent beside the body."""
        headers = CIMultiDict({"content-type": "application/json", "accept-encoding": "identity"})
        headers["accept"] = "text/event-stream" if streams else "application/json"
        known = self._keys.get(provider.id)
        # A request that was decided before resources changed goes to where the provider was.
        if known is not None and known.whose.address == provider.base_url:
            headers["authorization"] = f"Bearer {known.key}"
        return headers

    def _read(self, said: Credentials) -> tuple[str | None, str]:
        """Return a key, or why there is none."""
        if said.file is None:
            key = self._environ.get(said.variable or "") or None
            return key, "" if key else f"`{said.variable}` is not in the environment"
        path = Path(said.file)
        if path.exists() and not path.is_file():  # a pipe would keep the whole process waiting
            return None, "`credentials.file` is no regular file"
        return read_key(path, "credentials.file")
