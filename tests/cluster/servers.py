"""A real etcd and a real API server for custom resources, on loopback, for one session of tests."""

import json
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_S = 60.0

MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else ""


@dataclass(frozen=True, slots=True)
class Api:
    """An API server, and a way to ask it."""

    url: str
    kubeconfig: Path
    kubectl_file: Path
    process: "Process"

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Send one request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("content-type", content_type)
        try:
            with urllib.request.urlopen(request, context=_TRUSTING, timeout=30) as answer:
                return Answer(answer.status, json.load(answer))
        except urllib.error.HTTPError as error:
            return Answer(error.code, _said(error.read()))

    def kubectl(self, *words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl against it."""
        command = (self.kubectl_file, "--kubeconfig", self.kubeconfig, *words)
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


_TRUSTING = ssl.create_default_context()
_TRUSTING.check_hostname = False
_TRUSTING.verify_mode = ssl.CERT_NONE  # its certificate is made for this run, on loopback


def _said(body: bytes) -> Any:
    """Return what a failure says; of a path that there is not, plain text does."""
    try:
        return json.loads(body or b"{}")
    except ValueError:
        return {"message": body.decode(errors="replace")}


class Process:
    """One program, which a test may kill and start again."""

    def __init__(self, log: Path, *words: str | Path) -> None:
        self._log, self._words = log, words
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._running = subprocess.Popen(
                self._words, stdout=output, stderr=output, cwd=self._log.parent
            )

    def kill(self) -> None:
        """End it as a lost machine would."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def pause(self) -> None:
        """Have it hang."""
        if self._running is not None:
            self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._running is not None:
            self._running.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._running is None:
            return
        self._running.terminate()
        try:
            self._running.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def api_server(tools: Path, folder: Path) -> Iterator[Api]:
    """Run etcd and the API server until the block ends."""
    etcd_port, peer_port, port = _free_ports(3)
    etcd_url = f"http://127.0.0.1:{etcd_port}"
    key, certificate = folder / "server.key", folder / "server.crt"
    words = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj")
    made = ("-keyout", key, "-out", certificate, "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run((*words, "/CN=127.0.0.1", *made), check=True, capture_output=True)
    etcd = (
        *("etcd", "--data-dir", folder / "etcd"),
        *("--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url),
        *("--listen-peer-urls", f"http://127.0.0.1:{peer_port}"),
        *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer_port}"),
        *("--initial-cluster", f"default=http://127.0.0.1:{peer_port}"),
    )
    server = (
        *(tools / "crdserver", "-etcd", etcd_url, "-port", str(port)),
        *("-cert", certificate, "-key", key),
    )
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(f"https://127.0.0.1:{port}")))
    store = Process(folder / "etcd.log", *etcd)
    process = Process(folder / "crdserver.log", *server)
    store.start()
    process.start()
    try:
        api = Api(f"https://127.0.0.1:{port}", kubeconfig, tools / "kubectl", process)
        wait_for(api, folder)
        yield api
    finally:
        process.stop()
        store.stop()


def wait_for(api: Api, folder: Path) -> None:
    """Return once it answers."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            if api.ask("GET", "/apis").status == 200:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    logs = "\n".join((folder / f"{name}.log").read_text()[-1500:] for name in ("etcd", "crdserver"))
    raise AssertionError(f"the API server is not ready after {READY_S:g} s:\n{logs}")


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "nobody looks at it"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
