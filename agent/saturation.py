"""How near a GPU is to what it can do: one number of several measurements. Pure.

docs/gpu.md defines it in words, with what it is for and what it leaves out.
"""

from collections.abc import Collection

AT_ITS_LIMIT = frozenset(
    {"hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake", "sw_power_cap"}
)
"""Reasons for lower clocks that say: more work would not be done any faster."""


def saturation(
    busy: float | None,
    memory_activity: float | None,
    power_w: float | None,
    power_limit_w: float | None,
    throttled: Collection[str] | None,
) -> float | None:
    """Return 0 to 1; `None`: too little is known.

    `busy` and `memory_activity` are shares of the last sample period.
    """
    if busy is None:
        return None
    if throttled and not AT_ITS_LIMIT.isdisjoint(throttled):
        return busy
    drawn = None if power_w is None or not power_limit_w else min(1.0, power_w / power_limit_w)
    known = [share for share in (memory_activity, drawn) if share is not None]
    return busy * max(known) if known else None
