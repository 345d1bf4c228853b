"""An engine as discovery found it, what is heard of it, and what that comes to. Types only.

Values are immutable. `None` is a measurement that is missing; ages are seconds.
"""

from dataclasses import dataclass
from typing import NamedTuple

from lineside.ids import EngineId, GroupId, ModelName, NodeId, PodIdent
from lineside.signals import Events, Load, Status

STALE_AFTER_S = 2.0
"""A signal older than this is named stale; it is still used."""

CACHE_LOST_AFTER_S = 10.0
"""Without a word from its agent for this long, an engine is routed to by load alone."""

ASLEEP_FOR_S = 10.0
"""A report of an engine that sleeps keeps requests away for this long."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name that an engine answers to; `lora` is the adapter's name when it is one."""

    name: ModelName
    lora: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine as discovery found it. `rank` is `None` unless its server has several."""

    id: EngineId
    base_url: str
    endpoint: str
    group: GroupId
    models: tuple[ServedModel, ...]
    node: NodeId
    rank: int | None = None
    version: str = ""
    events: str = ""
    replay: str = ""
    events_bind: bool = False
    events_guessed: bool = False
    """`events` is vLLM's usual port, for want of any word: it may be another engine's."""
    topic: str = ""
    stride: int = 4
    tokenizer: str | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that serve it, where the configuration names them, or its node's agent does
    by the kubelet's word. Empty: unknown."""
    card: str = ""
    """The model of its GPUs, where that is sure: see `Cluster.observe_gpus`. Empty: unknown."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of its pod, sorted."""
    namespace: str | None = None
    """Of its pod; `None`: the configuration names it."""
    pod: PodIdent | None = None
    """`None`: the configuration names it."""

    def serves(self, model: str) -> ServedModel | None:
        """Return what the engine serves under this name."""
        return next((served for served in self.models if served.name == model), None)


@dataclass(frozen=True, slots=True)
class Hosting:
    """The pod that a server runs in."""

    pod: PodIdent
    labels: tuple[tuple[str, str], ...]
    """Sorted."""
    unfit: str = ""
    """Why no request is to go there, whatever the server says; empty: nothing is against it."""


class Word(NamedTuple):
    """What came of holding a digest against an engine's answers (`coordinator.holdings.audit`)."""

    mispredicted: str = ""
    """How requests contradict the digest; empty: they do not."""
    proven: bool = False
    """A request has shown that events from a guessed address are this engine's."""


class Doubt(NamedTuple):
    """What an agent is to be told of a generation that proved wrong."""

    generation: str
    how: str
    overstated: bool
    """It promised more than there was."""


NOTHING = Word()
"""Not asked enough yet, or all is well."""


class EngineView(NamedTuple):
    """An engine with what was last heard of it. Ages are seconds; `None`: never heard.

    A tuple: one is made for each engine many times a second.
    """

    engine: Engine
    linked: bool = False
    heard_age_s: float | None = None
    status: Status | None = None
    load: Load | None = None
    load_age_s: float | None = None
    generation: str = ""
    digest_live: bool = False
    diverged: bool = False
    """The last digest contradicted ours; a snapshot is on its way."""
    away: str = ""
    """Why the engine's server cannot be reached; empty: it can."""
    failing: str = ""
    """Why the engine is not used though it can be reached; empty: it is used."""

    hit_points: bool = False
    """The digest holds depths that the engine can serve from, and nothing before them."""
    word: Word = NOTHING
    removed: int = 0
    """Keys that were taken from the digest since its snapshot."""
    gpu_utilization: float | None = None
    """Of the busiest GPU that serves it, 0 to 1; `None`: not known, or not of now."""

    @property
    def block_size(self) -> int | None:
        """Tokens in one of the engine's cache blocks, from its events, else from its metrics."""
        if self.status and self.status.block_size:
            return self.status.block_size
        return self.load.block_size if self.load else None

    @property
    def cache_state(self) -> str:
        """One word: live, unsure, stale, unproven, lost, filling, connecting, unusable, none."""
        if not self.engine.events:
            return "none"
        if self.heard_age_s is None:
            return "connecting"
        if self.status and self.status.events is Events.UNUSABLE:
            return "unusable"
        if self.heard_age_s > CACHE_LOST_AFTER_S:
            return "lost"
        if not self.digest_live:
            return "filling"
        if self.status and self.status.events is Events.CONNECTING:
            return "connecting"
        if self.engine.events_guessed and not self.word.proven:
            return "unproven"
        if self.heard_age_s > STALE_AFTER_S:
            return "stale"
        if (
            self.diverged
            or self.word.mispredicted
            or (self.status and self.status.events is Events.UNSURE)
        ):
            return "unsure"
        return "live"

    @property
    def reason(self) -> str:
        """Why the cache is in its state, in one sentence; empty where it is live."""
        said, wrong = self.status.reason if self.status else "", self.word.mispredicted
        state = self.cache_state
        if state == "unproven":
            return _FOREIGN.format(wrong) if wrong else _REASONS[state]
        if state == "connecting" and not said:
            return f"{_REASONS[state]}: that of node `{self.engine.node}` is to"
        return said or (wrong if state == "unsure" else "") or _REASONS[state]

    @property
    def cache_usable(self) -> bool:
        """Whether the index says something about this engine: live, unsure, stale or unproven.

        Asked for every candidate of every decision, so it is not put in terms of the word.
        """
        age_s, status = self.heard_age_s, self.status
        return (
            self.digest_live
            and age_s is not None
            and age_s <= CACHE_LOST_AFTER_S
            and (status is None or status.events not in _UNKNOWABLE)
            and bool(self.engine.events)
        )

    @property
    def credit(self) -> float:
        """How far what the index says counts in a decision, 0 to 1."""
        if self.engine.events_guessed and not self.word.proven:
            return 0.0
        unsure = self.diverged or self.word.mispredicted
        status = self.status
        if unsure or (status is not None and status.events is Events.UNSURE):
            return UNSURE_CREDIT
        return 1.0

    @property
    def fresh_load(self) -> Load | None:
        """What the engine reported, while it is not stale."""
        age_s = self.load_age_s
        return self.load if age_s is not None and age_s <= STALE_AFTER_S else None

    @property
    def asleep(self) -> bool:
        """Whether the engine said so lately; an engine of which nothing is heard may be awake."""
        load, age_s = self.load, self.load_age_s
        return bool(load and load.asleep and age_s is not None and age_s <= ASLEEP_FOR_S)

    @property
    def fresh(self) -> bool:
        """Whether both the cache and the load were seen within their lifetime."""
        return (
            self.cache_state == "live"
            and self.load_age_s is not None
            and self.load_age_s <= STALE_AFTER_S
        )


UNSURE_CREDIT = 0.7
"""Of an unsure engine what is said is most often right, so it still beats an unknown one."""

_FOREIGN = "{}: vLLM's usual port may be another engine's, so name `kv` for this one"

_UNKNOWABLE = (Events.UNUSABLE, Events.CONNECTING)

_REASONS = {
    "live": "",
    "unsure": "the last digest contradicted ours; a snapshot is on its way",
    "unproven": "its events come from vLLM's usual port, and no request has shown yet that they are"
    " its own",
    "stale": "the engine's agent has not been heard of for a while",
    "lost": "the engine's agent has been silent for too long",
    "filling": "the engine's first snapshot is not complete",
    "connecting": "no agent has reported on the engine yet",
    "unusable": "the engine's cache cannot be matched",
    "none": "the engine publishes no KV events",
}
