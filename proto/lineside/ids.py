"""Names of things that must not be mixed up. Types only."""

from enum import IntEnum
from typing import NamedTuple, NewType

BlockKey = NewType("BlockKey", int)
"""Our 64-bit key of a prompt's leading units (see `lineside.hashing`)."""

EngineId = NewType("EngineId", str)
"""`HOST:PORT`, or `HOST:PORT/RANK` behind a server with several data-parallel ranks."""

GroupId = NewType("GroupId", str)
"""Engines that serve the same weights, and so share block keys."""

Generation = NewType("Generation", str)
"""Opaque; compared for equality only."""

NodeId = NewType("NodeId", str)
TenantId = NewType("TenantId", str)
ModelName = NewType("ModelName", str)


class PodIdent(NamedTuple):
    """A pod, of which there is never another one."""

    namespace: str
    name: str
    uid: str


class Medium(IntEnum):
    """Where a block lives, fastest first; the wire's numbers."""

    GPU = 0
    CPU = 1
    DISK = 2
