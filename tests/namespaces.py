"""Two nodes on this machine: network namespaces with addresses of their own on a bridge.

Only namespaces and links that are made here are touched. Where the system allows none, the tests
that need them are skipped, and pytest's summary says so.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

SIDES = ("a", "b")


@dataclass(frozen=True)
class Nodes:
    """Where both nodes are. This process reaches them over the bridge."""

    tag: str
    hosts: dict[str, str]

    def inside(self, side: str, *words: str) -> list[str]:
        """Return the words that run a Python module on a node, after `python -m`."""
        return ["tests.namespaces", f"{self.tag}{side}", *words]

    def cut(self, side: str) -> None:
        """Let nothing in or out of a node; connections are not told."""
        _ip("link", "set", f"{self.tag}{side}", "down")

    def mend(self, side: str) -> None:
        """Undo `cut`."""
        _ip("link", "set", f"{self.tag}{side}", "up")


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Make both nodes. Skips the test where that is not allowed."""
    tag, net = f"ls{os.getpid() % 100_000}", f"10.91.{os.getpid() % 250}"
    nodes = Nodes(tag, {side: f"{net}.{11 + n}" for n, side in enumerate(SIDES)})
    try:
        try:
            _make(nodes, net)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", "") or error
            pytest.skip(f"NO NETWORK NAMESPACES: nothing of partitions was tried ({why})")
        yield nodes
    finally:
        for words in (
            *(("netns", "del", f"{tag}{side}") for side in SIDES),
            *(("link", "del", f"{tag}{side}") for side in SIDES),
            ("link", "del", f"{tag}br"),
        ):
            with suppress(OSError, subprocess.CalledProcessError):  # it was never made, say
                _ip(*words)


def _make(nodes: Nodes, net: str) -> None:
    bridge = f"{nodes.tag}br"
    _ip("link", "add", bridge, "type", "bridge")
    _ip("addr", "add", f"{net}.1/24", "dev", bridge)
    _ip("link", "set", bridge, "up")
    for side, host in nodes.hosts.items():
        name = f"{nodes.tag}{side}"
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", bridge, "up")
        _ip("-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)


if __name__ == "__main__":
    _, _name, *_words = sys.argv
    os.execvp("ip", ["ip", "netns", "exec", _name, sys.executable, "-m", *_words])
