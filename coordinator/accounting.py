"""What a request is counted as on the backend that gets it. Called by the service alone.

In the backend's queue, in its cache and in its recent work, all in the step that decided.
"""

from coordinator.candidates import Candidate
from coordinator.decider import Decider
from coordinator.engines import Engine
from coordinator.holdings.overlay import Claim
from coordinator.load.inflight import Lease
from coordinator.seen import Keys, Seen
from lineside.hashing import UNIT


def account(
    decider: Decider, candidate: Candidate, seen: Seen, keys: Keys, lease_s: float
) -> tuple[Lease, Claim | None]:
    """Take a lease on a backend, which expires by itself, and a claim on an engine's cache."""
    target, now = candidate.target, decider.clock.monotonic()
    load = seen.load_tokens(candidate.model)
    due, deadline = now + candidate.wait_s + candidate.own_s, now + lease_s
    lease = decider.inflight.take(
        target.id,
        max(0, load - candidate.cached_tokens),
        candidate.own_s,
        now,
        deadline,
        None if seen.request.stream else due,
    )
    if not isinstance(target, Engine):
        return lease, None
    prompt = keys.get((candidate.model, target.group), ())
    at_end = candidate.view is not None and candidate.view.hit_points
    claim = decider.overlay.take(target.id, target.group, prompt, deadline, at_end)
    decider.recent.note(target, candidate.own_s)
    decider.newcomers.note(target, now)
    return lease, claim


def overdue(decider: Decider, candidate: Candidate, keys: Keys) -> int:
    """Return the leading tokens that an engine should long have announced."""
    target = candidate.target
    if not candidate.speculative_tokens or not isinstance(target, Engine):
        return 0
    prompt = keys.get((candidate.model, target.group), ())
    now = decider.clock.monotonic()
    return decider.overlay.overdue(target.group, prompt, target.id, now) * UNIT
