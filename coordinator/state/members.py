"""Who belongs to the cluster: coordinators, and the agents that each of them hears, as leased keys.

Each coordinator writes its own keys and those of the agents connected to it; they go when it does.
So an agent that misses one coordinator is seen, and no agent needs access to the store.
"""

from collections.abc import Callable, Collection, Mapping
from urllib.parse import quote, unquote

import msgspec

from coordinator.state.following import Following
from coordinator.state.store import Store
from coordinator.state.tenure import Tenure
from lineside.clock import Clock
from lineside.decoding import decoded
from lineside.ids import NodeId

PREFIX = "members/"
COORDINATORS, AGENTS = PREFIX + "coordinators/", PREFIX + "agents/"

LOOK_S = 1.0
"""Between two looks at which agents are connected."""


class Coordinator(msgspec.Struct, frozen=True):
    """What a coordinator says of itself."""

    version: str
    since: float
    """Unix seconds of its start."""
    listening: dict[str, str]
    """Addresses by listener, as others reach them."""


class Membership:
    """One coordinator's own keys, and its view of all."""

    def __init__(
        self, store: Store, clock: Clock, me: str, agents: Callable[[], Collection[NodeId]]
    ) -> None:
        """`me` is unique among all coordinators; `agents` gives the nodes that are connected."""
        self.me = me
        self.tenure = Tenure(store, clock)
        self.following = Following(store, PREFIX, clock)
        self._clock, self._agents = clock, agents
        self._held: set[NodeId] = set()

    def join(self, said: Coordinator) -> None:
        """Be a member from now on, for as long as `run` runs."""
        self.tenure.hold(COORDINATORS + self.me, msgspec.json.encode(said))

    async def run(self) -> None:
        """Say which agents are connected, until cancelled. Tenure and following run beside."""
        while True:
            self.look()
            await self._clock.sleep(LOOK_S)

    def look(self) -> None:
        """Bring the agents' keys in line with their streams."""
        connected = set(self._agents())
        for node in connected - self._held:
            self.tenure.hold(self._key(node), b"{}")
        for node in self._held - connected:
            self.tenure.drop(self._key(node))
        self._held = connected

    def _key(self, node: NodeId) -> str:
        return f"{AGENTS}{quote(node, safe='')}/{self.me}"

    def coordinators(self) -> dict[str, Coordinator]:
        """Return every coordinator by its id, as far as is known."""
        found = {}
        for key, stored in self.following.entries.items():
            if key.startswith(COORDINATORS):
                try:
                    said = decoded(stored.value, Coordinator)
                except msgspec.DecodeError:
                    continue  # of another release
                found[key.removeprefix(COORDINATORS)] = said
        return found

    def agents(self) -> dict[str, list[str]]:
        """Return the ids of the coordinators that each node's agent is connected to."""
        found: dict[str, list[str]] = {}
        for key in self.following.entries:
            if key.startswith(AGENTS):
                node, _, coordinator = key.removeprefix(AGENTS).partition("/")
                found.setdefault(unquote(node), []).append(coordinator)
        return found

    def shown(self) -> Mapping[str, object]:
        """Return the members, for people."""
        coordinators = self.coordinators()
        return {
            "me": self.me,
            "coordinators": [
                {"id": id, **msgspec.to_builtins(said)} for id, said in sorted(coordinators.items())
            ],
            "agents": [
                {"node": node, "coordinators": heard, "missing": sorted({*coordinators} - {*heard})}
                for node, heard in sorted(self.agents().items())
            ],
        }
