"""Real vLLM servers as process groups: started, killed, started again, and none left behind.

Nothing here knows the product. A server keeps its port and its log over all its lives.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.killable import free_ports
from tests.vllm.model import BLOCK, NAME

START_LIMIT_S = float(os.environ.get("VLLM_START_S", "180"))
"""Of one start: 20 to 40 s on an idle machine, far more where others compute too."""

STOP_LIMIT_S = 20.0
TAIL_BYTES = 3000
"""Of a log, shown when something failed."""

BLOCKS = 150
"""Of the KV cache, one of them reserved: small, so that a few hundred requests evict."""

EVENTS: dict[str, Any] = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:0",  # a free port of VLLM_HOST_IP, which /kv_event_sources tells
    "replay_endpoint": "tcp://*:0",
    "topic": "kv@tiny",
}

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache and /sleep
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every server takes the first core
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}

NOT_OURS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONHASHSEED", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables of this process that would change how a server computes, or what it imports."""


class DidNotStart(Exception):
    """A server did not come up; the end of its log is shown with the failure."""


@dataclass
class Server:
    """One `vllm serve`."""

    name: str
    command: Path
    model: Path
    log: Path
    words: tuple[str, ...] = ()
    """Further options; the last of two equal ones counts."""
    events: dict[str, Any] | None = field(default_factory=lambda: dict(EVENTS))
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_ports(1)[0])
    started_s: list[float] = field(default_factory=list)
    """How long each start took."""
    _process: subprocess.Popen[bytes] | None = None
    _began: float = 0.0

    @property
    def id(self) -> str:
        """What the product calls the engine."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.id}"

    def start(self) -> None:
        """Launch it; `wait` tells when it serves."""
        environment = {
            name: said
            for name, said in os.environ.items()
            if name not in NOT_OURS and not name.startswith("VLLM_")
        }
        environment |= ENVIRONMENT | self.environment
        environment["PATH"] = f"{self.command.parent}{os.pathsep}{environment.get('PATH', '')}"
        self._began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                env=environment,
                start_new_session=True,  # its processes are one group, and end as one
                preexec_fn=_end_with_parent,
            )

    def _command(self) -> list[str]:
        events = self.events or {"enable_kv_cache_events": False}
        return [
            *(str(self.command), "serve", str(self.model), "--served-model-name", NAME),
            *("--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--max-model-len", "1024", "--max-num-seqs", "16"),
            *("--max-num-batched-tokens", "1024", "--block-size", str(BLOCK)),
            *("--num-gpu-blocks-override", str(BLOCKS)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--kv-events-config", json.dumps(events)),
            *self.words,
        ]

    def wait(self) -> None:
        """Wait until it serves. Raises `DidNotStart`."""
        assert self._process is not None
        while time.monotonic() - self._began < START_LIMIT_S:
            if self._process.poll() is not None:
                break
            if self.is_up():
                self.started_s.append(time.monotonic() - self._began)
                self._warm_up()
                return
            time.sleep(0.1)
        code = self._process.poll()
        how = f"within {START_LIMIT_S:.0f} s" if code is None else f"and ended with {code}"
        self.kill()
        raise DidNotStart(f"{self.name} did not start {how}: see {self.log}")

    def _warm_up(self) -> None:
        """Compute a prompt: a worker whose first one has a few tokens only dies of an illegal
        instruction where the CPU has AMX."""
        prompt = list(range(3, 3 + 3 * BLOCK))
        self.post("/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": 1})

    def is_up(self) -> bool:
        """Say whether it serves."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str) -> Any:
        """Return a JSON page of the server itself."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any = None) -> Any:
        """Post to the server itself, past the product; return the JSON of the answer."""
        data = b"" if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, method="POST")
        asked.add_header("content-type", "application/json")
        with urllib.request.urlopen(asked, timeout=120) as answer:
            said = answer.read()
        return json.loads(said) if answer.headers.get_content_subtype() == "json" else None

    def empty(self) -> None:
        """Empty its cache, and let it say so, which it does with its next step."""
        assert self.post("/reset_prefix_cache") == {"success": True}
        self.post("/v1/completions", {"model": NAME, "prompt": [5], "max_tokens": 1})

    def kill(self) -> None:
        """End all its processes at once."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Ask it to end, then end what is left of it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
        self.kill()

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")


class Fleet:
    """All servers of a test session; `close` leaves none."""

    def __init__(self, command: Path, model: Path, logs: Path) -> None:
        self.servers: list[Server] = []
        self._command, self._model, self._logs = command, model, logs

    def launch(self, name: str, *words: str, **options: Any) -> Server:
        """Start a server, and do not wait for it."""
        log = self._logs / f"{name}.log"
        server = Server(name, self._command, self._model, log, words, **options)
        self.servers.append(server)
        server.start()
        return server

    def end(self, *servers: Server) -> None:
        """End some of them."""
        for server in servers:
            server.stop()
            self.servers.remove(server)

    def close(self) -> None:
        """End them all."""
        self.end(*self.servers)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the tests are killed, so that no server outlives them."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
