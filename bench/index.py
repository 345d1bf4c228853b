"""The index and block keys, beside Dynamo's on the same data in the same run.

    python bench/index.py [--peers] [--json FILE]

Prints one table; `bench/README.md` says what each row means. Seeds are fixed. Without `--peers`
nothing is installed and the peer's columns stay empty.
"""

import argparse
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.holdings.index import SHARDS, GroupIndex, Slot
from lineside import hashing
from lineside.ids import BlockKey

SEED = 20260
ENGINES = 64
KEYS = 1_000_000
STRIDE = 4
LONG, SHORT = 8192, 64
FILLER = 512
ROUNDS = 40
PROMPT_TOKENS = 131_072

PEER = "ai-dynamo-runtime==1.6.1"
PEER_HOME = Path(__file__).parents[1] / ".venv-peers" / "dynamo"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `peer` is `None` where no peer was run or none has the like."""

    what: str
    unit: str
    ours: float
    peer: float | None = None
    budget: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.peer is None else self.ours / self.peer


@dataclass(frozen=True, slots=True)
class Chain:
    """A cached prompt: its unit keys, and how many leading ones each engine holds."""

    keys: list[BlockKey]
    holders: dict[int, int]


@dataclass(frozen=True, slots=True)
class Scene:
    """What 64 engines hold: `KEYS` unit keys in all."""

    long: list[Chain]
    short: list[Chain]
    fillers: list[Chain]
    tokens: list[int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", action="store_true", help=f"install {PEER} and run it too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(measure_memory()))
        return 0

    memory = json.loads(_child([sys.executable, __file__, "--memory"]))
    scene = make_scene()
    peer = run_peer(scene) if options.peers else {}
    rows = [
        *overlap_rows(scene, peer),
        *key_rows(scene, peer),
        *memory_rows(memory, peer),
        *write_rows(),
    ]
    show(rows, with_peer=bool(peer))
    if options.json:
        options.json.write_text(json.dumps(report(rows), indent=2) + "\n")
    return 0


# --- the scene ------------------------------------------------------------------------------------


def make_scene() -> Scene:
    rng = random.Random(SEED)
    long = [_shared_prompt(rng, LONG) for _ in range(8)]
    short = [_shared_prompt(rng, SHORT) for _ in range(64)]
    left = KEYS - sum(len(chain.keys) for chain in long + short)
    fillers = [Chain(_keys(rng, FILLER), _few(rng, FILLER)) for _ in range(left // FILLER)]
    return Scene(long, short, fillers, [rng.randrange(150_000) for _ in range(PROMPT_TOKENS)])


def _shared_prompt(rng: random.Random, length: int) -> Chain:
    """Return a prompt that every engine holds, at 8 distinct depths."""
    depths = [STRIDE * steps for steps in rng.sample(range(1, length // STRIDE + 1), 8)]
    return Chain(_keys(rng, length), {engine: rng.choice(depths) for engine in range(ENGINES)})


def _few(rng: random.Random, depth: int) -> dict[int, int]:
    (count,) = rng.choices([1, 2, 3, 4], [0.7, 0.2, 0.07, 0.03])
    return dict.fromkeys(rng.sample(range(ENGINES), count), depth)


def _keys(rng: random.Random, count: int) -> list[BlockKey]:
    return [BlockKey(key) for (key,) in struct.iter_unpack("<Q", rng.randbytes(8 * count))]


def fill(scene: Scene, stride: int) -> GroupIndex:
    """Return an index that holds the scene, topped up to `KEYS` keys where the stride thins it."""
    index = GroupIndex(stride)
    slots = [index.open_slot() for _ in range(ENGINES)]
    for slot in slots:
        index.show(slot)
    for chain in scene.long + scene.short + scene.fillers:
        keys = hashing.strided(chain.keys, stride)
        for engine, depth in chain.holders.items():
            index.add(slots[engine], keys[: depth // stride])
    top_up(index, slots)
    return index


def top_up(index: GroupIndex, slots: list[Slot], total: int = KEYS) -> None:
    rng = random.Random(SEED + total)
    for _ in range((total - index.entries) // FILLER):
        keys = _keys(rng, FILLER)
        for engine in _few(rng, FILLER):
            index.add(slots[engine], keys)


# --- the peer -------------------------------------------------------------------------------------


def run_peer(scene: Scene) -> dict[str, Any]:
    """Run Dynamo on the scene, in its own environment; install it there on first use."""
    python, ready = PEER_HOME / "bin" / "python", PEER_HOME / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", PEER_HOME], check=True)
        hooks = set(PEER_HOME.rglob("*.pth"))
        pip = [str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", PEER]
        subprocess.run(pip, check=True)
        if added := set(PEER_HOME.rglob("*.pth")) - hooks:
            raise SystemExit(f"{PEER} brings a start-up hook, not run: {sorted(added)[0].name}")
        ready.touch()
    with tempfile.TemporaryDirectory() as folder:
        write_scene(scene, Path(folder))
        output = _child([python, Path(__file__).with_name("dynamo_peer.py"), folder])
        figures: dict[str, Any] = json.loads(output)
        return figures


def write_scene(scene: Scene, folder: Path) -> None:
    keys = array("Q")
    plan: dict[str, Any] = {"rounds": ROUNDS}
    for name in ("long", "short", "fillers"):
        spans = plan[name] = []
        for chain in getattr(scene, name):
            spans.append((len(keys), len(chain.keys), chain.holders))
            keys.extend(chain.keys)
    (folder / "keys.bin").write_bytes(keys.tobytes())
    (folder / "tokens.bin").write_bytes(array("I", scene.tokens).tobytes())
    (folder / "plan.json").write_text(json.dumps(plan))


def _child(command: Sequence[str | Path]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# --- rows -----------------------------------------------------------------------------------------


def overlap_rows(scene: Scene, peer: dict[str, Any]) -> Iterator[Row]:
    for stride in (STRIDE, 1):
        budgets = {"long": "ratio at most 0.25", "short": "ratio at most 1"} if stride > 1 else {}
        index = fill(scene, stride)
        for name, prompts in (("long", scene.long), ("short", scene.short)):

            def look_up(chain: Chain, index: GroupIndex = index) -> dict[Slot, int]:
                return index.depths(chain.keys, index.stride)

            answers = [
                {str(slot): depth * stride for slot, depth in look_up(chain).items()}
                for chain in prompts
            ]
            check(answers, [{str(e): d for e, d in c.holders.items()} for c in prompts])
            if peer:
                check(answers, peer[f"{name}_depths"])
            took = best_us([partial(look_up, chain) for chain in prompts])
            what = f"overlap of {len(prompts[0].keys)} units, {ENGINES} engines, stride {stride}"
            yield Row(what, "µs", took, peer.get(f"{name}_us"), budgets.get(name, ""))


def check(ours: list[dict[str, int]], theirs: list[dict[str, int]]) -> None:
    if ours != theirs:
        raise SystemExit("the index and what the engines hold disagree: the bench is void")


def key_rows(scene: Scene, peer: dict[str, Any]) -> Iterator[Row]:
    seed, tokens = hashing.seed(b"bench"), scene.tokens
    packed = hashing.pack(tokens)
    theirs = peer.get("hash_us")
    what = f"keys of {PROMPT_TOKENS} tokens"
    chained = best_us([lambda: hashing.chain(seed, packed)])
    yield Row(f"{what}, packed already", "µs", chained, theirs, "ratio below 1")
    both = best_us([lambda: hashing.chain(seed, hashing.pack(tokens))])
    yield Row(f"{what}, packing included", "µs", both, theirs, "ratio below 1")


def measure_memory() -> list[tuple[int, int, int]]:
    """Return (keys, resident bytes, estimated bytes): at a million, and just after shards grew."""
    index = GroupIndex(STRIDE)
    slots = [index.open_slot() for _ in range(ENGINES)]
    before = _resident_bytes()
    figures = []
    for total in (KEYS, 1_450_000):
        top_up(index, slots, total)
        figures.append((index.entries, _resident_bytes() - before, index.bytes_estimate))
    return figures


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_rows(figures: list[tuple[int, int, int]], peer: dict[str, Any]) -> Iterator[Row]:
    cases = ("a million keys", "shards just grown")
    for case, (keys, resident, estimate) in zip(cases, figures, strict=True):
        what = f"index bytes per 16 cached tokens, {case}"
        theirs = peer.get("bytes_per_block")
        yield Row(f"{what}, resident", "B", resident / keys / STRIDE, theirs, "at most 25")
        yield Row(f"{what}, estimated", "B", estimate / keys / STRIDE)


def write_rows() -> Iterator[Row]:
    """Time deltas of 128 keys against an index of a million, then a sweep of it."""
    index = GroupIndex(STRIDE)
    slots = [index.open_slot() for _ in range(ENGINES)]
    top_up(index, slots)
    rng = random.Random(SEED + 1)
    deltas = [_keys(rng, 128) for _ in range(800)]
    per_key = 1e3 / 128
    for what, write, slot in (
        ("add, key new to the index", index.add, slots[0]),
        ("add, key held elsewhere", index.add, slots[1]),
        ("remove, key held elsewhere", index.remove, slots[0]),
        ("remove, last holder", index.remove, slots[1]),
    ):
        calls = [partial(write, slot, keys) for keys in deltas]
        yield Row(f"{what}, a key", "ns", statistics.median(times_us(calls)) * per_key)
    index.free(slots[0])
    times = sorted(times_us([index.sweep_step] * SHARDS))
    yield Row("sweep of one shard of 3,900 keys, median", "µs", statistics.median(times))
    yield Row("sweep of one shard of 3,900 keys, longest", "µs", times[-1])


# --- clock and paper ------------------------------------------------------------------------------


def best_us(calls: Sequence[Callable[[], object]]) -> float:
    """Return the median call of the fastest of `ROUNDS` rounds: what else runs here is left out."""
    return min(statistics.median(times_us(calls)) for _ in range(ROUNDS))


def times_us(calls: Sequence[Callable[[], object]]) -> list[float]:
    times = []
    for call in calls:
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def show(rows: list[Row], with_peer: bool) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}  {'ours':>12}  {'dynamo':>12}  {'ratio':>6}  budget")
    for row in rows:
        peer = "" if row.peer is None else f"{row.peer:.2f} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        ours = f"{row.ours:.2f} {row.unit}"
        print(f"{row.what:{width}}  {ours:>12}  {peer:>12}  {ratio:>6}  {row.budget}".rstrip())
    if not with_peer:
        print(f"\nNo peer was run: the ratios need `--peers`, which installs {PEER}.")


def report(rows: list[Row]) -> dict[str, Any]:
    return {
        "bench": "index",
        "seed": SEED,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "peer": PEER if any(row.peer is not None for row in rows) else None,
        "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
