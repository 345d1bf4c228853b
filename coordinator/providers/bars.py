"""Which backends are out of the running for one request, before policies rank them. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from coordinator.apis import Api
from coordinator.candidates import Provider, spoken
from coordinator.providers.cooldowns import Cooldowns
from coordinator.targets import Layout

BY_API, BY_COOLDOWN, BY_KEY, BY_ADDRESS = "api", "cooldown", "key", "address"

KEY_S = 10.0
"""When to come again where a key cannot be read: somebody has to put it there first."""

KeyMissing: TypeAlias = Callable[[Provider], str | None]
"""Says why there is no key for a provider that needs one; content-free."""


class Bar(NamedTuple):
    """What keeps a backend from a request."""

    by: str
    why: str
    is_certain: bool
    """It cannot serve it; else it is used where there is nothing else."""
    for_s: float = 0.0
    """Until it may serve again: what is left of a cooldown, or a guess."""


def none_missing(_: Provider) -> str | None:
    """Say that every provider has its key, or needs none."""
    return None


def bars(
    layout: Layout,
    places: Iterable[int],
    api: Api,
    cooldowns: Cooldowns,
    now: float,
    translates: bool = True,
    key_missing: KeyMissing = none_missing,
) -> dict[int, Bar]:
    """Return what keeps providers among these places from a request of an API.

    `translates`: whoever sends the request on can put another API's answer into this one.
    """
    found = {}
    for place in places:
        target = layout.backends[place]
        if not isinstance(target, Provider):
            continue
        if spoken(target, api) is None:
            why = f"a provider of type {target.dialect.type} cannot be asked in `{api.value}`"
            found[place] = Bar(BY_API, why, is_certain=True)
        elif not translates and spoken(target, api) is not api:
            why = f"it does not speak `{api.value}`, and the asking gateway does not translate"
            found[place] = Bar(BY_API, why, is_certain=True)
        elif (missing := key_missing(target)) is not None:
            found[place] = Bar(BY_KEY, f"its key cannot be read: {missing}", True, KEY_S)
        elif (pause := cooldowns.pause(target.id, now)) is not None:
            left = f"for {pause.for_s:.1f} s" if pause.for_s else "one request finds out"
            why = f"{pause.cause.value}; {left}"
            found[place] = Bar(BY_COOLDOWN, why, pause.is_certain, pause.for_s)
    return found


def bars_nowhere(
    layout: Layout, places: Iterable[int], nowhere: Mapping[str, str]
) -> dict[int, Bar]:
    """Return what keeps engines from a request whose names have no address for who sends it."""
    return {
        place: Bar(BY_ADDRESS, f"the gateway cannot be told where it is: {why}", is_certain=True)
        for place in places
        if (why := nowhere.get(layout.backends[place].endpoint)) is not None
    }


def mask_of(found: Mapping[int, Bar], certain_only: bool = False) -> int:
    """Return the places as a bit mask."""
    return sum(1 << place for place, bar in found.items() if bar.is_certain or not certain_only)
