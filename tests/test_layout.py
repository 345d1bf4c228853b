"""Import names are ours; the lock file carries names, versions and hashes only."""

import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "name", ["agent", "cli", "coordinator", "policies", "simulate", "lineside"]
)
def test_no_other_distribution_provides_our_import_names(name: str) -> None:
    assert set(metadata.packages_distributions().get(name, [])) <= {"lineside"}


def test_the_lock_file_names_no_address_and_hashes_everything() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [line for line in lines if "://" in line or " @ " in line]
    pins = [line for line in lines if line and line[0] not in " #"]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[^ ]+ \\", pin) for pin in pins)
    assert len(pins) > 30
