"""Where an API server is and as whom we ask it, as files say: a pod's own account, or a kubeconfig.

The one place where such files are read, and read again: logins run out and are exchanged. Alone
imports the Kubernetes client, for what it makes of kubeconfigs (plugins among it).
"""

import asyncio
import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coordinator.kube.settings import Kubernetes
from lineside import logs
from lineside.nodes import parse

RENEW_S = 60.0
"""Between two looks at a kubeconfig's login. A plugin runs only when its token has run out."""

LOOK_S = 2.0
"""Between two looks whether a kubeconfig is still the one that was read, and whether one that is
refused says something else now: who is refused asks often, and each look may run a plugin."""

USUAL = "~/.kube/config"

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own account."""

HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
"""Kubernetes sets them in every pod."""

_TOKEN = re.compile(rb"[!-~]+")

_CLUMSY = (AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""What the client raises of a kubeconfig that lacks something, for want of a look at it."""


log = logs.get("coordinator.kube.login")


class CannotLogIn(Exception):
    """The files do not say as whom to ask. Says why, for people, and nothing that they hold."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where to ask, and as whom, for now."""

    url: str
    tls: ssl.SSLContext
    """The same object while nothing in it changed: connections are kept by it."""
    authorization: str | None
    server_name: str | None = None
    """Whose certificate it shows; `None`: the address's."""
    proxy: str | None = None


class Login(Protocol):
    """What requests are sent by."""

    uses_environment: bool
    """Whether the environment's proxies count. A pod asks its own cluster directly."""

    async def access(self) -> Access:
        """Return what holds now. Raises `CannotLogIn`."""
        ...

    async def after_refusal(self, refused: Access) -> Access | None:
        """Look anew, since the server does not know who asked; `None`: nothing has changed."""
        ...


def login(settings: Kubernetes) -> Login:
    """Return how the settings log in. Raises `CannotLogIn` where no pod is."""
    if settings.access == "in-cluster":
        return Mounted(pod_url(os.environ), str(ACCOUNT / "ca.crt"), str(ACCOUNT / "token"))
    return Kubeconfig(settings.kubeconfig, settings.context)


def pod_url(environ: Mapping[str, str]) -> str:
    """Return where a pod's own API server is. Raises `CannotLogIn` where this is no pod."""
    host, port = environ.get(HOST), environ.get(PORT)
    if not host or not port:
        raise CannotLogIn(f"this is no pod: {HOST} and {PORT} do not say where its API server is")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class Mounted:
    """A pod's account, read for each question: the kubelet exchanges tokens and authorities."""

    uses_environment = False

    def __init__(self, url: str, ca_file: str | None, token_file: str | None) -> None:
        """`ca_file` `None`: the system's authorities; `token_file` `None`: no token is sent."""
        self._url = url.rstrip("/")
        self._ca_file = ca_file
        self._token_file = token_file
        self._tls = _Tls()

    async def access(self) -> Access:
        """Return what holds now. Raises `CannotLogIn`."""
        try:
            return await asyncio.to_thread(self._read)
        except OSError as error:
            why = error.strerror.lower() if error.strerror else type(error).__name__
            raise CannotLogIn(f"our own account's files: {why}") from None

    async def after_refusal(self, refused: Access) -> Access | None:
        """Look anew: between a question and its answer the kubelet may have exchanged the token."""
        return _unless_same(await self.access(), refused)

    def _read(self) -> Access:
        authorization = None
        if self._token_file is not None:
            token = Path(self._token_file).read_bytes().strip()
            if not _TOKEN.fullmatch(token):
                raise CannotLogIn("our own account's files: no token is in `token_file`")
            authorization = f"Bearer {token.decode()}"
        return Access(self._url, self._tls.of(self._ca_file), authorization)


class Kubeconfig:
    """What a kubeconfig says, read again when it changes or the server refuses what it said.

    Tokens of its plugins and files are made anew when they run out. A change that cannot be used
    leaves what was read before.
    """

    uses_environment = True

    def __init__(self, file: str | None, context: str | None) -> None:
        """`file` `None`: the usual one, or several of them; `context` `None`: its current one."""
        self._file = file
        self._context = context
        self._loader: Any = None
        self._tls = _Tls()
        self._access: Access | None = None
        self._stamp: object = None
        self._read_at = self._looked_at = self._refused_at = float("-inf")
        self._problem = ""
        self._renewing = asyncio.Lock()
        """All watches are refused at once: one of them reads, which awaits, the others wait."""

    async def access(self) -> Access:
        """Return what holds now. Raises `CannotLogIn`."""
        now, has_changed = time.monotonic(), False
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now  # at once: others go on with what there is
            stamp = await asyncio.to_thread(_stamp, self._files)
            self._stamp, has_changed = stamp, stamp != self._stamp
        if self._access is None or has_changed or now - self._read_at >= RENEW_S:
            self._read_at = now
            await self._renew(anew=has_changed)
        assert self._access is not None
        return self._access

    async def after_refusal(self, refused: Access) -> Access | None:
        """Read the file and run its plugin anew, whatever they said of how long it holds."""
        async with self._renewing:
            now = time.monotonic()
            if self._access == refused and now - self._refused_at >= LOOK_S:
                self._refused_at = self._read_at = now
                await self._renew(anew=True)
        return _unless_same(self._access, refused)

    async def _renew(self, *, anew: bool) -> None:
        """Log in again, from the file if `anew`. What cannot be used leaves the login before."""
        if anew:
            self._loader = None
        try:
            self._access, self._problem = await self._read(), ""
        except CannotLogIn as error:
            self._loader = None
            if self._access is None:
                raise
            if str(error) != self._problem:
                log.warning("kubeconfig cannot be used", reason=str(error))
            self._problem = str(error)

    @property
    def _files(self) -> str:
        return self._file or os.environ.get("KUBECONFIG") or USUAL

    async def _read(self) -> Access:
        # Here, since the import takes 35 MB and a third of a second: for those who need it alone.
        from kubernetes_asyncio import client, config

        said = client.Configuration()
        try:
            if self._loader is None:
                _check(self._files)
                self._loader = await config.load_kube_config(
                    config_file=self._file,
                    context=self._context,
                    client_configuration=said,
                    persist_config=False,
                )
            else:
                await self._loader.load_and_set(said)
            files = (said.ssl_ca_cert, said.cert_file, said.key_file)
            tls = await asyncio.to_thread(self._tls.of, *files, verifies=said.verify_ssl)
        except (config.ConfigException, OSError) as error:
            raise CannotLogIn(str(error)) from error
        except _CLUMSY:
            raise CannotLogIn("the kubeconfig lacks something") from None
        return Access(
            said.host, tls, said.api_key.get("BearerToken"), said.tls_server_name, said.proxy
        )


class _Tls:
    """A context by files, made anew when one of them says something else."""

    def __init__(self) -> None:
        self._said: object = None
        self._context: ssl.SSLContext | None = None

    def of(
        self,
        ca_file: str | None,
        cert_file: str | None = None,
        key_file: str | None = None,
        *,
        verifies: bool = True,
    ) -> ssl.SSLContext:
        """Return it; `ca_file` `None`: the system's authorities. Raises `OSError`."""
        files = (ca_file, cert_file, key_file)
        said = (verifies, *(Path(file).read_bytes() if file else None for file in files))
        if self._context is None or said != self._said:
            context = ssl.create_default_context(cafile=ca_file)
            if cert_file:
                context.load_cert_chain(cert_file, key_file)
            if not verifies:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._context, self._said = context, said
        return self._context


def _unless_same(now: Access | None, refused: Access) -> Access | None:
    return None if now == refused else now


def _paths(files: str) -> list[Path]:
    return [Path(name).expanduser() for name in files.split(os.pathsep) if name]


def _stamp(files: str) -> object:
    """Return what changes when one of the files does."""
    stamps = []
    for path in _paths(files):
        try:
            found = path.stat()
        except OSError:
            continue
        stamps.append((path, found.st_ino, found.st_mtime_ns, found.st_size))
    return stamps


def _check(files: str) -> None:
    """Raise `OSError` where none is there, or for what is no YAML: the client tells neither."""
    paths = _paths(files)
    if not any(path.exists() for path in paths):
        raise OSError(f"there is no file {files}")
    for path in paths:
        if path.exists() and (findings := parse(path.read_bytes(), str(path)).findings):
            raise OSError(str(findings[0]))
