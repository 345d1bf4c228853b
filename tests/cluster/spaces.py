"""Network namespaces for one test, one a pod, on a bridge; NetworkPolicies as iptables' rules.

What enforces policies in a cluster is its network plugin. Here the chart's own policies are made
into rules of the same meaning, so that what they leave open and what they close can be tried.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SUBNET = "10.88.77"

SCAN = """\
import asyncio, json, sys
host, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
async def look(port, gate):
    async with gate:
        try:
            async with asyncio.timeout(2):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return None
        writer.transport.abort()
        return port
async def scan():
    gate = asyncio.Semaphore(200)
    found = await asyncio.gather(*(look(port, gate) for port in range(first, last + 1)))
    print(json.dumps([port for port in found if port]))
asyncio.run(scan())
"""


@dataclass(frozen=True, slots=True)
class Pod:
    """A namespace with an address, and the labels that policies know it by."""

    space: str
    address: str
    labels: Mapping[str, str]
    ports: Mapping[str, int]
    """Its ports by name."""

    def command(self, *words: str) -> tuple[str, ...]:
        """Return the words that run a program in it."""
        return ("ip", "netns", "exec", self.space, *words)

    def sees(self, other: "Pod", first: int = 1, last: int = 10_000) -> list[int]:
        """Return the ports of another that can be connected to from here."""
        words = self.command(sys.executable, "-c", SCAN, other.address, str(first), str(last))
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
        found: list[int] = json.loads(done.stdout)
        return found


def run(*words: str) -> None:
    """Run a program that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, (words, done.stderr)


@contextmanager
def pods(
    wanted: Mapping[str, tuple[Mapping[str, str], Mapping[str, int]]],
) -> Iterator[dict[str, Pod]]:
    """Make a namespace for each name, with labels and named ports, until the block ends."""
    bridge, made = f"ls{os.getpid()}", dict[str, Pod]()
    run("ip", "link", "add", bridge, "type", "bridge")
    try:
        run("ip", "link", "set", bridge, "up")
        for number, (name, (labels, ports)) in enumerate(wanted.items(), start=11):
            space, end = f"{bridge}-{name}", f"{bridge}v{number}"
            run("ip", "netns", "add", space)
            made[name] = Pod(space, f"{SUBNET}.{number}", labels, ports)
            run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", end, "master", bridge, "up")
            run("ip", "-n", space, "addr", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", space, "link", "set", device, "up")
        yield made
    finally:
        for pod in made.values():
            run("ip", "netns", "del", pod.space)
        run("ip", "link", "del", bridge)


def enforce(policies: Sequence[Any], among: Mapping[str, Pod], closed: Sequence[str]) -> None:
    """Make rules of NetworkPolicies. `closed`: what becomes of all else, in iptables' words."""
    for pod in among.values():
        applying = [
            each
            for each in policies
            if _selects(each["spec"]["podSelector"], pod)
            and "Ingress" in each["spec"]["policyTypes"]
        ]
        if not applying:
            continue
        rules: list[Sequence[str]] = [
            ("-i", "lo", "-j", "ACCEPT"),
            ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
        ]
        for policy in applying:
            for allowed in policy["spec"].get("ingress", ()):
                rules += _allowing(allowed, pod, among)
        for rule in [*rules, ("-p", "tcp", *closed)]:
            run(*pod.command("iptables", "-A", "INPUT", *rule))


def _allowing(allowed: Any, pod: Pod, among: Mapping[str, Pod]) -> Iterator[Sequence[str]]:
    sources = [()]
    if "from" in allowed:
        sources = [
            ("-s", other.address)
            for other in among.values()
            if any(_selects(peer["podSelector"], other) for peer in allowed["from"])
        ]
    for port in allowed["ports"]:
        number = port["port"] if isinstance(port["port"], int) else pod.ports[port["port"]]
        for source in sources:
            yield ("-p", "tcp", "--dport", str(number), *source, "-j", "ACCEPT")


def _selects(selector: Any, pod: Pod) -> bool:
    return selector.get("matchLabels", {}).items() <= pod.labels.items()
