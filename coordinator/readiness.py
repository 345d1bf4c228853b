"""Whether to send requests here, and what is served around. Reads; changes nothing but its memory.

A coordinator that starts waits for what it will know within seconds: a cold one among warm ones
would spoil the caches. One that was ready stays so: lost agents degrade it, no more.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from coordinator.discovery import NOT_ASKED
from coordinator.engines import EngineView
from coordinator.holdings.cap import IndexCap, State
from coordinator.providers.cooldowns import Cause
from coordinator.resources import Source
from coordinator.service import Service
from coordinator.state.numbering import Numbering
from coordinator.state.pulse import Pulse
from lineside.ids import EngineId

FILL_S = 10.0
"""From the start, for every engine's first snapshot; then it is served around."""

CODES = (
    "engine_away",
    "engine_failing",
    "engine_asleep",
    "engine_unresolved",
    "cache_connecting",
    "cache_filling",
    "cache_stale",
    "cache_unproven",
    "cache_lost",
    "cache_unsure",
    "cache_unusable",
    "no_agent",
    "no_events",
    "index_coarse",
    "index_over",
    "overlay_full",
    "provider_cooldown",
    "provider_key_missing",
    "provider_key_refused",
    "resources_rejected",
    "resources_rolled_back",
    "resources_kept",
    "kubernetes_away",
    "store_away",
    "store_foreign",
    "secret_unknown",
    "certificate_ending",
    "certificate_rejected",
    "token_review_away",
    "agent_refused",
)
"""All that a coordinator may serve around; docs/operations.md says what is served meanwhile."""


class Reason(NamedTuple):
    """One thing that is not as it should be: a code for machines, a sentence for people."""

    code: str
    text: str


class Readiness:
    """One coordinator's, from its start on."""

    def __init__(
        self,
        *,
        service: Service,
        cap: IndexCap,
        numbering: Numbering,
        pulse: Pulse,
        resources: Source | None = None,
        others: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        """`others` names what else is degraded: codes and sentences."""
        self._service = service
        self._resources = resources
        self._others = others
        self._cap = cap
        self._numbering = numbering
        self._pulse = pulse
        self._deadline = service.clock.monotonic() + FILL_S
        self._was_ready = False
        self.leaving = False
        """This coordinator is about to drain: whoever asks is to go elsewhere."""

    def reasons(self) -> list[str]:
        """Return why not, one sentence each; empty: ready."""
        views = self._views()
        if self._service.draining or self.leaving:
            return ["shutting down"]
        reasons = []
        if not any(view.engine.models and not view.away for view in views):
            reasons.append("no engine can be reached")
        if self._resources is not None and self._resources.unknown:
            reasons.append("the policies in force are in the store, which is away")
        reasons += [text for _, text in self._awaited(views)]
        self._was_ready = self._was_ready or not reasons
        return reasons

    def degraded(self) -> list[Reason]:
        """Return what is served around; what readiness waits for is none of it."""
        views = self._views()
        awaited = {text for _, text in self._awaited(views)}
        reasons = [reason for view in views if (reason := _of_engine(view))]
        reasons = [reason for reason in reasons if reason.text not in awaited]
        events = self._of_events(views) if not awaited else ()
        others = (Reason(code, text) for code, text in self._others())
        return [*reasons, *events, *self._of_providers(), *self._of_parts(), *others]

    def _awaited(self, views: tuple[EngineView, ...]) -> list[Reason]:
        """Return the engines that a start waits for: unasked ones, and those without a snapshot."""
        if self._was_ready or self._service.clock.monotonic() >= self._deadline:
            return []
        of_engines = ((view, _of_engine(view)) for view in views)
        return [
            reason
            for view, reason in of_engines
            if reason
            and (reason.code in ("cache_connecting", "cache_filling") or view.away == NOT_ASKED)
        ]

    def _of_events(self, views: tuple[EngineView, ...]) -> Iterator[Reason]:
        publishing = [view for view in views if view.engine.events]
        if publishing and not any(view.linked for view in publishing):
            yield Reason("no_agent", "engines publish KV events and no agent is connected")
        if not publishing and any(view.engine.models for view in views):
            yield Reason("no_events", "no engine publishes KV events: all go by load alone")

    def _of_providers(self) -> Iterator[Reason]:
        decider, now = self._service.decider, self._service.clock.monotonic()
        for name, provider in decider.rules.providers.items():
            if missing := decider.key_missing(provider):
                text = f"provider {name} is not used: its key cannot be read: {missing}"
                yield Reason("provider_key_missing", text)
            pause = decider.cooldowns.pause(EngineId(name), now)
            if pause is not None:
                is_key = pause.cause is Cause.KEY_REFUSED
                code = "provider_key_refused" if is_key else "provider_cooldown"
                yield Reason(code, f"provider {name} cools down: {pause.cause.value}")

    def _of_parts(self) -> Iterator[Reason]:
        if self._cap.state is State.OVER:
            yield Reason("index_over", "the index takes more than `index_bytes`")
        for group, factor in self._cap.factors.items():
            text = f"group {group}: one in {factor} of its keys is kept, to stay in `index_bytes`"
            yield Reason("index_coarse", text)
        if self._service.overlay.full:
            text = "there is no room for what requests in flight will have cached"
            yield Reason("overlay_full", text)
        if self._resources is not None and self._resources.rejected:
            text = "resources have errors, so the last good ones stay in force: /debug/policies"
            yield Reason("resources_rejected", text)
        if self._resources is not None and (away := self._resources.away):
            yield Reason("kubernetes_away", f"the cluster cannot be read: {away}")
        if self._service.decider.rules.rolled_back:
            text = "resources were rolled back: what is in force is not what was applied last"
            yield Reason("resources_rolled_back", text)
        if away := self._pulse.away or self._numbering.away:
            yield Reason("store_away", f"the store is away: {away}")
        if not self._pulse.secret.value:
            text = "the cluster's secret is not known yet: all requests go by load alone"
            yield Reason("secret_unknown", text)
        if self._pulse.is_foreign:
            text = "the store holds the secret of another cluster: agents follow one of the two"
            yield Reason("store_foreign", text)

    def _views(self) -> tuple[EngineView, ...]:
        return self._service.cluster.snapshot(self._service.clock.monotonic()).engines


def _of_engine(view: EngineView) -> Reason | None:
    """Return the first thing that is wrong with an engine; the rest follows from it."""
    name, state = view.engine.id, view.cache_state
    if view.away:
        return Reason("engine_away", f"engine {name} is away: {view.away}")
    if view.failing:
        return Reason("engine_failing", f"engine {name}: {view.failing}")
    if view.asleep:
        return Reason("engine_asleep", f"engine {name} sleeps")
    if state in ("live", "none"):
        return None
    return Reason(f"cache_{state}", f"engine {name}: {state}: {view.reason}")
