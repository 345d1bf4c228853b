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
from lineside.nodes import parse

RENEW_S = 60.0
"""Between two looks at a kubeconfig's login. A plugin runs only when its token has run out."""

USUAL = "~/.kube/config"

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own account."""

HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
"""Kubernetes sets them in every pod."""

_TOKEN = re.compile(rb"[!-~]+")

_CLUMSY = (AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""What the client raises of a kubeconfig that lacks something, for want of a look at it."""


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

    def _read(self) -> Access:
        authorization = None
        if self._token_file is not None:
            token = Path(self._token_file).read_bytes().strip()
            if not _TOKEN.fullmatch(token):
                raise CannotLogIn("our own account's files: no token is in `token_file`")
            authorization = f"Bearer {token.decode()}"
        return Access(self._url, self._tls.of(self._ca_file), authorization)


class Kubeconfig:
    """What a kubeconfig says; tokens of its plugins and files are made anew when they run out."""

    uses_environment = True

    def __init__(self, file: str | None, context: str | None) -> None:
        """`file` `None`: the usual one, or several of them; `context` `None`: its current one."""
        self._file = file
        self._context = context
        self._loader: Any = None
        self._tls = _Tls()
        self._access: Access | None = None
        self._read_at = 0.0

    async def access(self) -> Access:
        """Return what holds now. Raises `CannotLogIn`."""
        if self._access is None or time.monotonic() - self._read_at >= RENEW_S:
            self._read_at = time.monotonic()  # at once: others go on with what there is
            self._access = await self._read()
        return self._access

    async def _read(self) -> Access:
        # Here, since the import takes 35 MB and a third of a second: for those who need it alone.
        from kubernetes_asyncio import client, config

        said = client.Configuration()
        try:
            if self._loader is None:
                _check(self._file or os.environ.get("KUBECONFIG") or USUAL)
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


def _check(files: str) -> None:
    """Raise `OSError` where none is there, or for what is no YAML: the client tells neither."""
    paths = [Path(name).expanduser() for name in files.split(os.pathsep) if name]
    if not any(path.exists() for path in paths):
        raise OSError(f"there is no file {files}")
    for path in paths:
        if path.exists() and (findings := parse(path.read_bytes(), str(path)).findings):
            raise OSError(str(findings[0]))
