"""Whether the store answers, and is still the one it was. One that lost its data is filled again.

What a coordinator serves from is in its memory, so nothing that is served waits for the store. Of a
store that was wiped every coordinator puts back what it has: the secret first, since every block
key comes from it.
"""

import asyncio
from collections.abc import Callable

from coordinator.state.secret import Secret
from coordinator.state.store import (
    PUT_BACK_S,
    SECRET_KEY,
    Store,
    StoreUnavailable,
    cluster_secret,
)
from lineside import logs
from lineside.clock import Clock

log = logs.get("coordinator.state.pulse")

LOOK_S = 1.0
"""Between two looks: reads, no writes."""

ANSWER_S = 3.0
"""From then on the store counts as away; an etcd that lost a member takes up to 2 s."""


class Pulse:
    """Written by `run` alone."""

    def __init__(
        self,
        store: Store,
        secret: Secret,
        clock: Clock,
        remake: Callable[[], object],
        unwritten: Callable[[], str] = str,
    ) -> None:
        """`remake` is called when the store lost its data: what else was in it is to be written.

        `unwritten` says why those who write could not: looking does not, and a disk may be full. A
        secret that is not known yet is taken from the store as soon as that is there.
        """
        self._silent = "" if secret.value is not None else "it did not answer at the start"
        """Why the store does not answer; empty: it does."""
        self._unwritten = unwritten
        self.is_foreign = False
        """Whether it holds the secret of another cluster: both sides' block keys differ."""
        self.wipes = 0
        self._store, self.secret, self._clock, self._remake = store, secret, clock, remake
        self._life: str | None = None
        self._lacks_since: float | None = None
        self._was_away = bool(self._silent)

    @property
    def away(self) -> str:
        """Why the store does not answer, or cannot be written; empty: it does, and can."""
        return self._silent or self._unwritten()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask the store once."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._ask()
            self._silent = ""
        except TimeoutError:
            self._silent = f"no answer within {ANSWER_S:g} s"
        except StoreUnavailable as error:
            self._silent = str(error)
        if self._was_away != bool(self.away):
            self._was_away = not self._was_away
            log.warning("store", away=self.away or None)

    async def _found(self) -> bytes | None:
        """Take the store's secret over; make one once nobody can have put back a lost one."""
        now = self._clock.monotonic()
        if (stored := await self._store.get(SECRET_KEY)) is not None:
            self.secret.learn(stored.value)
        elif self._lacks_since is None:
            self._lacks_since = now
        elif now - self._lacks_since >= PUT_BACK_S:
            self.secret.learn(await cluster_secret(self._store))
        if self.secret.value is not None:  # an agent may have brought it meanwhile
            log.info("joined the store")
        return self.secret.value

    async def _ask(self) -> None:
        life = await self._store.life()
        secret = self.secret.value or await self._found()
        if secret is None:
            return
        stored = await self._store.get(SECRET_KEY)
        if stored is None:
            await self._store.compare_and_set(SECRET_KEY, None, secret)
            stored = await self._store.get(SECRET_KEY)
        is_foreign = stored is not None and stored.value != secret
        if is_foreign and not self.is_foreign:
            log.warning("store holds another cluster's secret")
        self.is_foreign = is_foreign
        if self._life is not None and life != self._life:
            self.wipes += 1
            log.warning("store lost its data", wipes=self.wipes)
            self._remake()
        self._life = life
