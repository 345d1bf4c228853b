"""The repository as it was: another release's code, to run beside today's.

Nothing has been released yet, so the release before is a commit: SKEW_REV, else the newest tag,
else the newest commit that is a day old, else one that is known.
"""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

KNOWN = "9d97e13"
"""Before coordinators told each other what they have in flight, and before TLS."""


def previous() -> str:
    """Return the revision that counts as the release before."""
    asked = os.environ.get("SKEW_REV") or _git("describe", "--tags", "--abbrev=0")
    return asked or _git("rev-list", "-1", "--before=1 day ago", "HEAD") or KNOWN


def _git(*words: str) -> str:
    """Return what git says, or nothing where it has no answer."""
    done = subprocess.run(("git", "-C", ROOT, *words), capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def unpacked(revision: str, folder: Path) -> Path:
    """Lay a revision's files into a folder, which must be there; return it."""
    made = subprocess.run(
        ("git", "-C", ROOT, "archive", revision, "agent", "coordinator", "policies", "proto"),
        capture_output=True,
    )
    assert made.returncode == 0, f"there is no `{revision}` here: {made.stderr.decode()}"
    subprocess.run(("tar", "-x", "-C", folder), input=made.stdout, check=True)
    return folder


def environ(tree: Path) -> dict[str, str]:
    """Return the environment in which a tree's code is imported, and no other's."""
    return {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'proto'}"}
