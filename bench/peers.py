"""Other routers, each in a virtual environment of its own under `.venv-peers/`.

Installs what is missing on first use, from wheels only. A wheel that brings a start-up hook is
refused: it would run with everything else in that environment, and releases were hijacked that way.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[1] / ".venv-peers"

INSTALL_LIMIT_S = 600.0


class Missing(Exception):
    """A peer cannot be had here; the message says why, and stands in the table."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An environment and what is put into it: a call of pip for each group."""

    name: str
    groups: Sequence[Sequence[str]]

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return HOME / self.name / "bin"


VLLM_ROUTER = Peer("vllm-router", [["vllm-router==0.1.17"]])
SGLANG_ROUTER = Peer("sglang-router", [["sglang-router==0.3.2"]])
DYNAMO = Peer(
    "dynamo-frontend",
    [
        ["ai-dynamo-runtime==1.6.1"],
        # One of the things it asks for is a placeholder; the others here are what it imports.
        ["--no-deps", "ai-dynamo==1.6.1"],
        ["packaging", "msgspec", "prometheus-client", "pyzmq", "aiohttp", "pyyaml"],
    ],
)
DYNAMO_SELECTOR = Peer(
    "dynamo-selector",
    [["ai-dynamo-runtime==1.6.1"], ["aiohttp", "uvloop", "tokenizers"]],
)
ALL = (VLLM_ROUTER, SGLANG_ROUTER, DYNAMO, DYNAMO_SELECTOR)


def install(peer: Peer) -> None:
    """Make the peer's environment, unless it is there. Raises `Missing`."""
    ready = HOME / peer.name / "ready"
    asked = "\n".join(" ".join(group) for group in peer.groups) + "\n"
    if ready.exists() and ready.read_text() == asked:
        return
    _run([sys.executable, "-m", "venv", "--clear", str(HOME / peer.name)])
    hooks = set(peer.bin.parent.rglob("*.pth"))
    pip = [str(peer.bin / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    for group in peer.groups:
        _run([*pip, *group])
    if added := set(peer.bin.parent.rglob("*.pth")) - hooks:
        raise Missing(f"a start-up hook comes with it: {sorted(added)[0].name}")
    ready.write_text(asked)


def _run(command: Sequence[str]) -> None:
    """Raises `Missing`."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"not installed within {INSTALL_LIMIT_S:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Missing(f"not installed: {(errors or ['no reason given'])[0]}")


def main() -> int:
    """Install all, and say what cannot be had."""
    for peer in ALL:
        try:
            install(peer)
        except Missing as why:
            print(f"{peer.name}: {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
