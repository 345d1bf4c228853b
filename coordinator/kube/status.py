"""Writes what became of resources into their status, and tells of bad news in events.

The leader alone writes. What was said already is not written again; what changed meanwhile is read
anew; a server that is away or refuses keeps nothing from being in force.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from coordinator.kube.api import JSON_PATCH, Answer, Api, ApiAway
from coordinator.kube.conditions import (
    Condition,
    Said,
    moment,
    names_said,
    patch_of,
    transitions,
    without_names,
)
from coordinator.kube.kinds import BY_NAME, EVENTS
from coordinator.kube.reading import decoded
from coordinator.kube.reflection import Object
from coordinator.kube.written import Ident, Written, written
from lineside import logs
from lineside.clock import Clock, heard_within

log = logs.get("coordinator.kube.status")

LOOK_S = 1.0

SPACING_S = 0.1
"""Between two writes, so that a thousand resources that change at once do not flood the server."""

STEADY_S = 10.0
"""Names that are missing, or there again, are told of when that has lasted so long: engines come
and go."""

REFUSED_S = 30.0
"""After an answer that says we may not write."""

TRIES = 3
"""Of one write, while others write the same object."""

EVENT_CHARS = 1000
"""Of an event's message; a server takes 1,024."""


@dataclass(frozen=True, slots=True)
class Due:
    """An object, and what is to be said of it."""

    object: Written
    said: Said


class StatusWriter:
    """Written to by whoever judges; writes to the server by itself."""

    def __init__(self, api: Api, clock: Clock, leads: Callable[[], bool]) -> None:
        self.problem = ""
        """Why statuses are not written, though this coordinator leads; empty: they are."""
        self.counts: Counter[str] = Counter()
        """Writes by outcome: written, conflict, gone, failed, event, event_failed."""
        self._api, self._clock, self._leads = api, clock, leads
        self._due: Mapping[Ident, Due] = {}  # as many as there are objects; each holds its newest
        self._wake = asyncio.Event()
        self._after: dict[Ident, tuple[str, Written]] = {}
        """What our own last write made of the revision that it changed."""
        self._names: dict[Ident, tuple[Condition, float]] = {}
        """What is to be said of an object's names that its status does not say, and since when."""

    def want(self, due: Mapping[Ident, Due]) -> None:
        """Have all this said, and nothing else."""
        self._due = due
        self._after = {ident: each for ident, each in self._after.items() if ident in due}
        self._names = {ident: each for ident, each in self._names.items() if ident in due}
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await heard_within(self._wake, LOOK_S, self._clock)
            self._wake.clear()
            if not self._leads():
                continue
            try:
                await self._write_all()
                self.problem = ""
            except ApiAway as error:
                self.problem = str(error)
            except _MayNot as refused:
                self._note(str(refused))
                await self._clock.sleep(REFUSED_S)

    async def _write_all(self) -> None:
        for ident in list(self._due):
            if not self._leads():
                return
            if (due := self._due.get(ident)) is None:
                continue
            known = self._newest(ident, due.object)
            due = replace(due, said=self._lasting(ident, known, due.said))
            if patch_of(known, due.said, 0.0) is not None:
                await self._write(ident, due)
                await self._clock.sleep(SPACING_S)

    def _lasting(self, ident: Ident, known: Written, said: Said) -> Said:
        """Leave out what is to be said of names, unless that has been so for a while."""
        is_said, condition = names_said(known, said)
        if is_said or (is_said is None and condition.is_true):
            self._names.pop(ident, None)
            return said
        now = self._clock.monotonic()
        before, since = self._names.get(ident, (None, now))
        self._names[ident] = condition, since if before == condition else now
        return said if now - self._names[ident][1] >= STEADY_S else without_names(said)

    def _newest(self, ident: Ident, known: Written) -> Written:
        revision, after = self._after.get(ident, ("", known))
        return after if revision == known.revision else known

    async def _write(self, ident: Ident, due: Due) -> None:
        known = self._newest(ident, due.object)
        path = BY_NAME[ident[0]].object(ident[1], ident[2])
        for _ in range(TRIES):
            patch = patch_of(known, due.said, self._clock.unix())
            if patch is None or known.form.uid != due.object.form.uid:
                break
            answer = await self._api.ask("PATCH", f"{path}/status", (), patch, JSON_PATCH)
            if answer.is_good:
                self.counts["written"] += 1
                self._after[ident] = (due.object.revision, _written(ident, answer))
                for condition in transitions(known, due.said):
                    await self._tell(due.object, condition)
                break
            if answer.status != 409:
                self._failed(ident, answer.status, answer.reason)
                break
            self.counts["conflict"] += 1
            fresh = await self._api.ask("GET", path)
            if not fresh.is_good:
                self._failed(ident, fresh.status, fresh.reason)
                break
            known = _written(ident, fresh)
            if known.form.generation != due.said.generation:
                break  # it is to be judged anew
            self._after[ident] = (due.object.revision, known)

    def _failed(self, ident: Ident, status: int, reason: str) -> None:
        if status == 404:
            self.counts["gone"] += 1
            return
        self.counts["failed"] += 1
        if status in (401, 403):
            raise _MayNot(reason)
        log.warning("status not written", object="/".join(ident), reason=reason)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("statuses cannot be written", reason=problem)
        self.problem = problem

    async def _tell(self, each: Written, condition: Condition) -> None:
        """Send an event. One that is lost, or may not be sent, is in the status all the same."""
        event = event_of(each, condition, self._clock.unix())
        path = EVENTS.collection(each.ident[1])
        answer = await self._api.ask("POST", path, (), event)
        # The name is made of what is said, so that two leaders in a row say it once.
        sent = answer.is_good or answer.status == 409
        self.counts["event" if sent else "event_failed"] += 1


def _written(ident: Ident, answer: Answer) -> Written:
    try:
        return written(ident[0], decoded(answer.body, dict[str, Any]))
    except msgspec.MsgspecError:
        raise ApiAway("its answer is no object") from None


class _MayNot(Exception):
    """This coordinator has no right to write."""


def event_of(each: Written, condition: Condition, now: float) -> Object:
    """Return the event that tells of a condition."""
    kind, namespace, name = each.ident
    spoken = (each.form.uid, str(each.form.generation), *_spoken(condition))
    mark = hashlib.sha256("\0".join(spoken).encode()).hexdigest()[:16]
    at = moment(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name[:200]}.{mark}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": _api_version(kind),
            "kind": kind,
            "namespace": namespace,
            "name": name,
            "uid": each.form.uid,
            "resourceVersion": each.revision,
        },
        "type": "Normal" if condition.is_true else "Warning",
        "reason": condition.reason,
        "message": condition.message[:EVENT_CHARS],
        "source": {"component": "lineside-coordinator"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _spoken(condition: Condition) -> tuple[str, ...]:
    return condition.type, str(condition.is_true), condition.reason, condition.message


def _api_version(kind: str) -> str:
    return BY_NAME[kind].api.removeprefix("/apis/")
