"""Tells when an engine computes prompts and announces no block. Pure.

Silence alone says nothing, for events leave an engine only when something changed; its counters
tell whether something did. Written by the engine's worker.
"""

import math

from lineside.signals import Load

LAG_S = 5.0
"""A counter may follow the events of the same prompt by this much."""

ALARM_S = 3.0
"""What was computed must stay unannounced for this long."""


class Silence:
    """One engine's: batches are `heard`, loads are `saw`; `tokens` is above 0 in an alarm."""

    def __init__(self) -> None:
        self.tokens = 0
        self._heard_at = -math.inf
        self._since: float | None = None
        self._base: tuple[int, int] | None = None
        self._computed = 0

    def heard(self, at: float) -> None:
        """Note a batch of events. What was computed before it is not held against it.

        Counters may not have been had for a while: they are compared from the next load on.
        """
        self.tokens = 0
        self._heard_at = at
        self._since = self._base = None

    def saw(self, load: Load, block_size: int, at: float) -> None:
        """Compare counters with what was heard. Without the counters there is nothing to say."""
        if load.prompt_tokens is None or load.prefix_cache_hits is None:
            return
        computed, prefills = load.prompt_tokens - load.prefix_cache_hits, load.prefills or 0
        restarted, self._computed = computed < self._computed, computed
        if self._base is None or restarted or at - self._heard_at <= LAG_S:
            self._base, self._since, self.tokens = (computed, prefills), None, 0
            return
        tokens = computed - self._base[0]
        # A prompt, or the rest of one after a hit, that fills no block is rightly unannounced.
        if tokens <= block_size * max(prefills - self._base[1], 1):
            return
        if self._since is None:
            self._since = at
        if at - self._since >= ALARM_S:
            self.tokens = tokens
