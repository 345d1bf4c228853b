"""Agents' bound ServiceAccount tokens, judged by the cluster's API server (TokenReview).

Answers are kept for a while, so that streams that come back ask nobody. No token is kept or shown:
its hash stands for it.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from coordinator.trust.proof import Denied, Shown, Why
from lineside import logs
from lineside.clock import Clock
from lineside.decoding import decoded
from lineside.ids import NodeId

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"

GOOD_S = 60.0
"""How long a good answer is believed without asking: a pod that is deleted loses its token."""

BAD_S = 5.0
"""The same of a refusal: agents try every 2 s."""

STALE_S = 600.0
"""How long a good answer counts while the API server cannot be asked."""

MOST_KEPT = 4096
"""Answers; the oldest is forgotten first, and its agent costs one question more."""

AT_ONCE = 8
"""Questions at a time: a coordinator that starts hears of all agents at once."""

MOST_TOKEN = 16 * 2**10
"""Characters of a token; a longer one is none."""

NODE_NAME = "authentication.kubernetes.io/node-name"

log = logs.get("coordinator.trust.token_review")


class CannotAsk(Exception):
    """The API server gives no answer. Says why, for people."""


class ApiServer(Protocol):
    """Where questions go. One method, so that any client of Kubernetes can stand here."""

    async def create(self, path: str, document: Mapping[str, Any]) -> bytes:
        """Create an object; return the answer's body. Raises `CannotAsk`."""
        ...


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: dict[str, tuple[str, ...]] = {}


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()
    error: str = ""


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose token it is. `node` `None`: it does not say."""

    account: str
    node: NodeId | None


_Answer: TypeAlias = Holder | Denied


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: _Answer
    at: float


class TokenReview:
    """Agents prove their node by the token that the kubelet makes for their pod."""

    def __init__(
        self,
        api: ApiServer,
        accounts: Sequence[str],
        audience: str,
        clock: Clock,
        *,
        needs_node: bool = True,
    ) -> None:
        self._api = api
        self._accounts = frozenset(accounts)
        self._audience = audience
        self._clock = clock
        self._needs_node = needs_node
        self._kept: dict[bytes, _Kept] = {}
        # Held while the API server is asked, by so many at a time.
        self._asking = asyncio.Semaphore(AT_ONCE)
        self.away = ""
        """Why the API server could not be asked the last time; empty: it answered."""

    async def judge(self, shown: Shown, node: NodeId) -> Denied | None:
        """Return why a stream may not speak for a node; `None`: it may."""
        token = shown.token
        if not token or len(token) > MOST_TOKEN:
            text = (
                "the agent sends no ServiceAccount token: mount one with audience"
                f" `{self._audience}` and set `token_file`"
            )
            return Denied(Why.UNKNOWN, text)
        holder = await self._holder(token)
        if isinstance(holder, Denied):
            return holder
        return self._judged(holder, node)

    def _judged(self, holder: Holder, node: NodeId) -> Denied | None:
        if holder.account not in self._accounts:
            text = (
                f"the token is of ServiceAccount `{holder.account[:253]}`, which is none of"
                " `service_accounts.accounts`"
            )
            return Denied(Why.UNKNOWN, text)
        if holder.node == node or (holder.node is None and not self._needs_node):
            return None
        if holder.node is None:
            text = (
                "the agent's token names no node, as clusters before Kubernetes 1.30 make them:"
                " set `service_accounts.needs_node: false` to let it speak for any"
            )
        else:
            text = (
                f"the agent's token is of node `{holder.node[:253]}`, and it speaks for `{node}`:"
                " set its `node` to the name of the node that it runs on"
            )
        return Denied(Why.NOT_ITS_NODE, text)

    async def _holder(self, token: str) -> _Answer:
        digest = hashlib.sha256(token.encode()).digest()
        if (answer := self._known(digest)) is not None:
            return answer
        async with self._asking:
            if (answer := self._known(digest)) is not None:
                return answer  # somebody asked meanwhile
            try:
                answer = await self._ask(token)
            except CannotAsk as error:
                self._lost(str(error))
                kept = self._kept.get(digest)
                if kept is not None and self._age(kept) < STALE_S:
                    return kept.answer
                text = f"the API server cannot be asked about the agent's token: {error}"
                return Denied(Why.CANNOT_TELL, text)
        self._lost("")
        self._keep(digest, answer)
        return answer

    def _known(self, digest: bytes) -> _Answer | None:
        kept = self._kept.get(digest)
        if kept is None:
            return None
        limit = BAD_S if isinstance(kept.answer, Denied) else GOOD_S
        return kept.answer if self._age(kept) < limit else None

    def _age(self, kept: _Kept) -> float:
        return self._clock.monotonic() - kept.at

    def _keep(self, digest: bytes, answer: _Answer) -> None:
        self._kept.pop(digest, None)
        while len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[digest] = _Kept(answer, self._clock.monotonic())

    def _lost(self, why: str) -> None:
        if why and why != self.away:
            log.warning("API server cannot be asked", reason=why)
        elif self.away and not why:
            log.info("API server answers again")
        self.away = why

    async def _ask(self, token: str) -> _Answer:
        question = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            said = decoded(await self._api.create(PATH, question), _Review).status
        except msgspec.MsgspecError:
            raise CannotAsk("its answer is no TokenReview") from None
        if not said.authenticated or self._audience not in said.audiences:
            text = (
                "the API server does not accept the agent's token: it has expired, its pod is gone,"
                f" it is of another cluster, or it is not made for audience `{self._audience}`"
            )
            return Denied(Why.UNKNOWN, text)
        names = said.user.extra.get(NODE_NAME, ())
        kind, _, account = said.user.username.partition("system:serviceaccount:")
        if kind or not account:
            return Denied(Why.UNKNOWN, "the agent's token is of no ServiceAccount")
        return Holder(account.replace(":", "/", 1), NodeId(names[0]) if names else None)
