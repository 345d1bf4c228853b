"""Third parties' keys, and the headers that providers are sent: none of the client's.

Keys come from files or the environment; they are read when resources are applied and at each look
after that, and nobody is shown one. A request that was decided before resources changed goes to
where its provider was, and without a key if that is elsewhere now.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from multidict import CIMultiDict

from coordinator.candidates import Provider
from coordinator.credentials import read_key
from coordinator.providers.dialects import root_of
from coordinator.providers.signing import AccessKey, of_values, read_profile, signature
from lineside import logs
from lineside.ids import EngineId
from policies.backends import AccessKey as AccessKeySource
from policies.backends import Credentials
from policies.model import InferenceProvider

log = logs.get("coordinator.providers.keys")

KEPT_HEADERS = frozenset({"content-encoding", "content-type", "retry-after"})
"""What a client gets of a provider's headers; the rest tells of our account there."""

FILE_BYTES = 2**16
"""A longer file holds no access key."""

Key: TypeAlias = str | AccessKey
"""An API key, which is sent; or an access key, which signs."""


class _Whose(NamedTuple):
    """Who gets a key, and where it is from."""

    address: str
    credentials: Credentials


class _Known(NamedTuple):
    whose: _Whose
    key: Key


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
        before, keys, problems = self._keys, dict[EngineId, _Known](), dict[EngineId, str]()
        for provider in providers:
            name, spec = EngineId(provider.metadata.name), provider.spec
            if spec.credentials is None:
                continue
            whose = _Whose(root_of(spec), spec.credentials)
            key, problem = self._read(spec.credentials)
            if key is None and name in before and before[name].whose == whose:
                key = before[name].key
            if key:
                keys[name] = _Known(whose, key)
            if problem and self._problems.get(name) != problem:
                log.warning("provider key missing", provider=name, reason=problem)
            problems[name] = problem
        self._keys, self._problems = keys, problems  # each at once: requests read them meanwhile

    @property
    def problems(self) -> Mapping[EngineId, str]:
        """Why each provider's key is missing that has none; content-free."""
        return {name: problem for name, problem in self._problems.items() if problem}

    def missing(self, provider: Provider) -> str | None:
        """Return why there is no key for a provider that needs one; content-free."""
        if not provider.needs_key or self._key(provider) is not None:
            return None
        return self._problems.get(provider.id) or "it was not looked for yet"

    def headers(
        self, provider: Provider, url: str, body: bytes, accept: str = "application/json"
    ) -> CIMultiDict[str]:
        """Return all that a provider is sent beside the body. `url` is quoted as it is sent."""
        key, dialect = self._key(provider), provider.dialect
        json = {"content-type": "application/json"}
        headers = CIMultiDict({**json, "accept": accept, "accept-encoding": "identity"})
        if isinstance(key, AccessKey):
            headers.update(signature(key, dialect.region or "", url, json, body))
        else:
            headers.update(dialect.headers(key))
        return headers

    def _key(self, provider: Provider) -> Key | None:
        known = self._keys.get(provider.id)
        if known is None or known.whose.address != provider.base_url:
            return None
        return known.key

    def _read(self, said: Credentials) -> tuple[Key | None, str]:
        """Return a key, or why there is none."""
        if said.access_key is not None:
            return self._read_access_key(said.access_key)
        if said.secret is not None:
            return None, "a key in a Secret is not read yet"
        if said.file is None:
            key = self._environ.get(said.variable or "") or None
            if key is None:
                return None, f"`{said.variable}` is not in the environment"
            return (key, "") if key.isprintable() else (None, f"`{said.variable}` holds no key")
        if _is_odd(path := Path(said.file)):
            return None, "`credentials.file` is no regular file"
        return read_key(path, "credentials.file")

    def _read_access_key(self, said: AccessKeySource) -> tuple[Key | None, str]:
        if said.file is None:
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
            key = of_values(*(self._environ.get(name) for name in names))
            return key, "" if key else f"`{names[0]}` or `{names[1]}` is not in the environment"
        if _is_odd(path := Path(said.file)):
            return None, "`credentials.accessKey.file` is no regular file"
        try:
            with path.open("rb") as file:
                raw = file.read(FILE_BYTES + 1)
        except OSError as error:
            why = error.strerror or "no reason given"
            return None, f"`credentials.accessKey.file` cannot be read: {why}"
        key = read_profile(raw.decode(errors="replace"), said.profile)
        if key is None or len(raw) > FILE_BYTES:
            return None, "`credentials.accessKey.file` holds no access key in that profile"
        return key, ""


def _is_odd(path: Path) -> bool:
    """Whether a file is none: a pipe would keep the whole process waiting."""
    return path.exists() and not path.is_file()
