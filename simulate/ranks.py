"""The engines behind one server: which one a request goes to, and what is asked of all of them."""

from collections.abc import Sequence

from simulate.driver import Driver
from simulate.requests import Refused


class Ranks:
    """The data-parallel ranks of one server, by number."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self.drivers = drivers
        self._next = 0

    def choose(self, header: str | None) -> Driver:
        """Return the rank that `X-data-parallel-rank` names, else each in turn.

        Raises `Refused`.
        """
        if header is not None:
            return self.drivers[self.number(header)]
        driver = self.drivers[self._next]
        self._next = (self._next + 1) % len(self.drivers)
        return driver

    def number(self, text: str) -> int:
        """Return a rank's number. Raises `Refused` if there is none such."""
        if text.isdecimal() and int(text) < len(self.drivers):
            return int(text)
        told = f"data_parallel_rank {text} is out of range [0, {len(self.drivers)})."
        raise Refused(400, told)

    @property
    def open_exchanges(self) -> int:
        """HTTP requests under way."""
        return sum(driver.open_exchanges for driver in self.drivers)

    def reset(self, *, preempt_running: bool) -> bool:
        """Empty every rank's cache; tell whether all could be."""
        done = [driver.core.reset(preempt_running=preempt_running) for driver in self.drivers]
        return all(done)

    @property
    def sleeping(self) -> bool:
        return any(driver.sleeping for driver in self.drivers)
