"""Which stream may speak for a node: the newest one, and no life that was replaced. Pure.

Written by ingest alone. Lives are told apart, never ordered: a new one replaces the old, and an old
one comes back only where nobody else is connected.
"""

from collections import deque
from collections.abc import Container

from coordinator.holdings.feed import Stream
from lineside.ids import NodeId

PAST_LIVES = 16
"""Replaced lives of a node's agent that are remembered; the oldest is forgotten first."""


class Fence:
    """The fences of all nodes."""

    def __init__(self) -> None:
        self._newest: dict[NodeId, Stream] = {}
        self._past: dict[NodeId, deque[str]] = {}

    def admit(self, node: NodeId, stream: Stream, is_connected: bool) -> str:
        """Let a stream speak for a node from now on, or return why it may not."""
        newest = self._newest.get(node)
        past = self._past.setdefault(node, deque(maxlen=PAST_LIVES))
        if newest is not None and not stream.replaces(newest):
            return f"connection {stream.connection} of node `{node}` is outdated"
        if is_connected and stream.life in past:
            # Two agents by one name would take the node from each other for ever.
            return (
                f"a newer agent of node `{node}` is connected: stop one of the two, or give them"
                " different names"
            )
        if newest is not None and newest.life != stream.life:
            past.append(newest.life)
        self._newest[node] = stream
        return ""

    def keep(self, nodes: Container[NodeId]) -> None:
        """Forget all nodes but these, so that their number is bounded."""
        for node in [node for node in self._past if node not in nodes]:
            del self._past[node]
            self._newest.pop(node, None)
