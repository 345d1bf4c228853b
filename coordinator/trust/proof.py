"""Whether a stream may speak for the node that it names: by a token, by its certificate.

What it shows is judged here; gRPC's words for a refusal are `ingest`'s. No message shows a token.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lineside.certificates import nodes_of
from lineside.ids import NodeId

MOST_NAMES = 4
"""Of a certificate's names in one message."""


class Why(Enum):
    """What an agent is refused for."""

    UNKNOWN = "unknown"
    """It does not prove who it is."""
    NOT_ITS_NODE = "not its node"
    """It does, and speaks for another node."""
    CANNOT_TELL = "cannot tell"
    """Nobody can say just now; it may try again."""


@dataclass(frozen=True, slots=True)
class Denied:
    """An agent may not speak, and one sentence for its operator."""

    why: Why
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What a stream shows of itself."""

    authorization: str = ""
    """The metadata of this name."""
    uris: Sequence[str] = ()
    """Of a certificate that was verified."""
    names: Sequence[str] = ()

    @property
    def token(self) -> str:
        """The bearer token; empty: there is none."""
        kind, _, token = self.authorization.partition(" ")
        return token.strip() if kind.lower() == "bearer" else ""


class Proof(Protocol):
    """Judges what streams show."""

    async def judge(self, shown: Shown, node: NodeId) -> Denied | None:
        """Return why a stream may not speak for a node; `None`: it may."""
        ...


@dataclass(frozen=True, slots=True)
class SharedToken:
    """All agents send the same token."""

    token: str

    async def judge(self, shown: Shown, node: NodeId) -> Denied | None:
        """Return why not; it says nothing of nodes."""
        if hmac.compare_digest(shown.token.encode(), self.token.encode()):
            return None
        text = "the agent's token is missing or not the one that this coordinator expects"
        return Denied(Why.UNKNOWN, text)


class OwnCertificate:
    """A certificate names the nodes that its holder speaks for; gRPC has verified it."""

    async def judge(self, shown: Shown, node: NodeId) -> Denied | None:
        """Return why a certificate does not name the node."""
        named = nodes_of(shown.uris, shown.names)
        if node in named:
            return None
        if not named:
            said = "the agent's certificate names no node"
        else:
            said = f"the agent's certificate is for {_listed(sorted(named))}, not for `{node}`"
        text = f"{said}: give it one with the URI `spiffe://DOMAIN/node/{node}`, or set its `node`"
        return Denied(Why.NOT_ITS_NODE, text)


@dataclass(frozen=True, slots=True)
class All:
    """Every one of several proofs must hold; with none of them anybody may speak."""

    proofs: Sequence[Proof]

    async def judge(self, shown: Shown, node: NodeId) -> Denied | None:
        """Return what the first says that does not hold."""
        for proof in self.proofs:
            if denied := await proof.judge(shown, node):
                return denied
        return None


def _listed(names: Sequence[str]) -> str:
    said = ", ".join(f"`{name[:253]}`" for name in names[:MOST_NAMES])
    return said if len(names) <= MOST_NAMES else f"{said} and others"
