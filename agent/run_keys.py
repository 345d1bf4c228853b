"""The unit keys of one run of blocks, from its tokens and what else tells its blocks apart. Pure.

Token ids are hashed here and let go; nothing is kept.
"""

from itertools import groupby

from agent.kv_events import BlockStored
from lineside.hashing import UNIT, UNIT_BYTES, chain, mix
from lineside.ids import BlockKey


def run_keys(parent: BlockKey, event: BlockStored) -> list[BlockKey]:
    """Return the key of each unit in the run's keyable blocks, which follow `parent`.

    A media part is mixed in once, before the unit in which it starts; what follows inherits it.
    """
    packed = event.packed[: event.keyable * event.block_size * 4]
    if not event.media:
        return chain(parent, packed)
    keys: list[BlockKey] = []
    begin = 0
    for unit, parts in groupby(sorted(event.media, key=_start), lambda part: part[1] // UNIT):
        keys += chain(parent, packed[begin : unit * UNIT_BYTES])
        parent = mix(keys[-1] if keys else parent, [(name, at % UNIT) for name, at in parts])
        begin = unit * UNIT_BYTES
    return keys + chain(parent, packed[begin:])


def _start(part: tuple[str, int]) -> int:
    return part[1]
