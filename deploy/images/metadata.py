"""Lets an image's Python know the version of what it runs: `python metadata.py pyproject.toml`.

The images hold code that is not installed, so that nothing has to be built for them.
"""

import sys
import sysconfig
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
name, version = project["name"], project["version"]
folder = Path(sysconfig.get_paths()["purelib"], f"{name}-{version}.dist-info")
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
