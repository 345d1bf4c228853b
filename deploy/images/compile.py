"""Compiles the hot modules of a copy of the tree, in place: `python compile.py FOLDER`.

`[tool.lineside] compiled` in the folder's `pyproject.toml` names them. Needs mypy, which brings the
compiler from Python to C, a C compiler, and what the modules import. Refuses a tree that is worked
in: there a module would go on running as it was compiled, whatever becomes of its source.
"""

import os
import sys
import tomllib
from pathlib import Path

import setuptools

USAGE = "usage: python compile.py FOLDER, where FOLDER is a copy of the tree, not a working tree\n"


def main(arguments: list[str]) -> int:
    """Compile; return the exit code."""
    from mypyc.build import mypycify  # looks at what is imported: setuptools must be

    folder = Path(*arguments[:1])
    if (
        len(arguments) != 1
        or not (folder / "pyproject.toml").exists()
        or (folder / ".git").exists()
    ):
        sys.stderr.write(USAGE)
        return 2
    os.chdir(folder)
    project = tomllib.loads(Path("pyproject.toml").read_text())
    modules: list[str] = project["tool"]["lineside"]["compiled"]
    sources = [f"{module.replace('.', '/')}.py" for module in modules]
    setuptools.setup(
        name="lineside",
        packages=[],
        ext_modules=mypycify(sources, group_name="lineside", debug_level="0"),
        script_args=["--quiet", "build_ext", "--inplace"],
    )
    sys.stdout.write(f"compiled {len(modules)} modules\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
