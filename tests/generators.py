"""The scripts that write files of this repository, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def manifests() -> ModuleType:
    """Return deploy/generate.py."""
    spec = importlib.util.spec_from_file_location("manifests", ROOT / "deploy" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
