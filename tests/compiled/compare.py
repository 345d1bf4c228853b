"""Whether two trees decide alike: `python -m tests.compiled.compare PLAIN COMPILED`.

Each tree makes the same 12,000 random decisions in a process of its own; they must print the same
bytes, which cover what `EXPECTED` names, and the second tree must run compiled what it is to run
so. Exit codes: 0 alike, 1 not.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNT = 12_000
EXPECTED = {
    *("refused: unknown_model", "refused: policy_denied", "refused: no_engine_ready"),
    *("ended: finished", "ended: aborted", "ended: failed", "ended: refused"),
    *("engine", "provider", "fallback", "shadow", "guard", "cached", "claimed", "newcomer full"),
    *("dropped: away", "dropped: failing", "unknown prompt", "lease expired"),
}
"""What is to be among the decisions. Were they all alike, no difference would show."""

LOADED = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""


def main(plain: Path, compiled: Path) -> int:
    """Compare; return the exit code."""
    project = tomllib.loads((compiled / "pyproject.toml").read_text())
    names = project["tool"]["lineside"]["compiled"]
    for tree, wanted in ((plain, ".py"), (compiled, ".so")):
        loaded = json.loads(_run(tree, "-c", LOADED, *names))
        if wrong := [name for name, file in loaded.items() if not file.endswith(wanted)]:
            return _failed(f"{tree}: not loaded as {wanted}: {', '.join(wrong)}")
    one, other = (
        _run(tree, "-m", "tests.compiled.decisions", str(COUNT)).splitlines()
        for tree in (plain, compiled)
    )
    if len(one) != len(other) or one != other:
        at = next(n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
        return _failed(f"decision {at} differs:\n{one[at]}\n{other[at]}")
    seen = Counter(what for line in one for what in _kinds(json.loads(line)))
    if missing := EXPECTED - seen.keys():
        return _failed(f"alike, but nothing of this among them: {', '.join(sorted(missing))}")
    print(f"{len(one)} decisions are alike, compiled and not")
    for what, count in sorted(seen.items()):
        print(f"  {count:>8}  {what}")
    return 0


def _run(tree: Path, *words: str) -> str:
    root = tree.resolve()
    environ = os.environ | {"PYTHONPATH": f"{root}:{root / 'proto'}", "PYTHONHASHSEED": "0"}
    words = (sys.executable, *words)
    done = subprocess.run(words, cwd=root, env=environ, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(_failed(f"{root}: no decisions"))
    return done.stdout


def _kinds(line: list[Any]) -> Iterator[str]:
    """Yield what a decision was, once each."""
    record, ended, late, _ = line
    kinds = {f"ended: {each['outcome']['end']}" for each in (record, *ended)} - {"ended: None"}
    if "refusal" in record:
        kinds.add(f"refused: {record['refusal']['reason']}")
    if "decision" in record:
        kinds.add(record["decision"]["type"])
    for each in record["candidates"]:
        kinds |= {"cached"} if each["overlap_tokens"] else set()
        kinds |= {"claimed"} if each["speculative_tokens"] else set()
        kinds |= {"newcomer full"} if each["newcomer_full"] else set()
        kinds |= {f"dropped: {by}"} if (by := each["dropped_by"]) in ("away", "failing") else set()
    kinds |= {"fallback"} if any(each["attempts"] for each in ended) else set()
    kinds |= {"shadow"} if record["shadow"] else set()
    kinds |= {"guard"} if record["guards"] else set()
    kinds |= {"unknown prompt"} if record["tokens"] == "unknown" else set()
    kinds |= {"lease expired"} if late else set()
    yield from kinds


def _failed(why: str) -> int:
    sys.stderr.write(f"{why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
