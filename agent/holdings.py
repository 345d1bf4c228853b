"""What is said of one engine: its residency, the digest log of it, and how far both can be trusted.

Pure. Written by the engine's worker, which hands over what the subscriber yields, in order.

Three marks qualify what is said. *Behind*: the engine may have done more than has arrived.
*Unsure*: events were lost for good, so that blocks may be held which are not reported; never the
other way round. *Unproven*: holdings from a checkpoint, of which the engine has not yet confirmed
that they are of its present life; nothing of them is said before it has.

While an engine is unsure, coordinators may make it announce anew what it holds, which looks like
another copy of it. So copies are counted from when that is over, and until then, in what a new
reader is told of the past too, a block has one at least.
"""

from typing import TypeAlias

from agent.digest_log import DigestLog
from agent.kv_events import AllBlocksCleared, KvEvent
from agent.residency import Residency
from agent.sequence import Behind, Gap, Restarted, Whole
from lineside.ids import EngineId, Generation

Mark: TypeAlias = Gap | Restarted | Behind | Whole


class Holdings:
    """One engine's under one key scheme. `restored`: what a checkpoint says, yet unproven."""

    def __init__(
        self,
        engine: EngineId,
        secret: bytes,
        stride: int,
        restored: Residency | None = None,
        lost: str = "",
    ) -> None:
        self.log = DigestLog(engine, stride)
        self.residency = restored or Residency(secret, stride)
        self.residency.at_least_one = True
        self.unproven = restored is not None
        self.behind = ""
        """Why the engine may have done more than has arrived; empty: it has not."""
        self.lost = lost
        """Why blocks may be held that are not reported; empty: there are none."""

    def apply(self, event: KvEvent) -> None:
        """Apply one event."""
        self.residency.apply(event)
        if isinstance(event, AllBlocksCleared):
            self.lost = ""  # nothing is held, and that is known

    def mark(self, item: Mark) -> None:
        """Take what the subscriber says between batches."""
        match item:
            case Restarted():
                self.empty()
            case Gap(lost=True, reason=reason):
                self._lose(f"events were lost: {reason}")
            case Gap(reason=reason) | Behind(reason=reason):
                self.behind = reason
            case Whole():
                self.behind = ""
                if self.unproven:
                    self._say_anew(self.lost)

    def empty(self) -> None:
        """Start empty: a new life of the engine, or one that gave its memory back."""
        self.residency.clear()
        self._say_anew("")

    def restride(self, stride: int) -> None:
        """Say the same at another stride, in a generation of its own."""
        before = self.residency.stride
        self.residency.restride(stride)
        if self.residency.stride != before and not self.unproven:
            self._say_anew(self.lost)

    def healed(self, generation: Generation) -> bool:
        """Take a coordinator's word that what is said of a generation has proved right.

        Return whether that ended a doubt.
        """
        if not self.lost or generation != self.log.generation:
            return False
        self.lost = ""
        return True

    def doubt(self, reason: str) -> None:
        """Hold nothing any more, for what was held is not to be believed."""
        self._lose(reason)

    def quiet(self) -> None:
        """Take it that what was announced on demand has arrived: count copies from here on."""
        self.residency.at_least_one = bool(self.lost)

    def flush(self) -> bool:
        """Put what changed since the last flush into the log. Return whether anything did."""
        if self.unproven:
            return False
        changes, of, said = self.residency.take_changes(), self.residency, self.log
        now = (of.media, of.stride, of.hit_points)
        if now != (said.media, said.stride, said.hit_points):
            self._say_anew(self.lost)  # cannot be said within the log's generation
            return True
        self.log.record(changes)
        return self.log.flush()

    def _lose(self, reason: str) -> None:
        self.residency.at_least_one = True
        self.residency.lose()
        self._say_anew(reason)

    def _say_anew(self, lost: str) -> None:
        """Begin a generation with what is held."""
        of = self.residency
        of.take_changes()
        self.lost, self.unproven = lost, False
        self.log.restart(of.media, of.held(), of.stride, hit_points=of.hit_points)
