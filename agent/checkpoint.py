"""What an agent remembers of an engine over its own restart: a file of holdings and their place.

Written every 30 s and at stop, read once when an engine's reading begins. A file holds the engine's
opaque keys and our block keys, never token ids or text. It is used whole or not at all, and what is
used is held against the engine before any of it is reported (see `agent.holdings`).

Holdings change while they are written. So the columns that change are copied in one step, about
4 ms for a million cached tokens, and all else is done by a thread on what was copied.
"""

import hashlib
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from xxhash import xxh3_128_digest

from agent.blocks import KEY_BYTES, Block, downwards, total
from agent.hybrid import Windows
from agent.residency import Residency
from agent.sequence import Place
from lineside.ids import BlockKey, EngineId, Medium

VERSION = 3
"""Of the format; another one is not read."""

MAX_BYTES = 2**30
"""Of a file: ten times what ten million cached tokens take. A larger one is not read."""

KEEP_S = 7 * 24 * 3600.0
"""A file not written for so long is of an engine that is gone."""

_MAGIC = b"lineside"
_HEAD = len(_MAGIC) + 2 + 16  # the version and the checksum follow
_COPIES_BYTES = 12  # 32 bits for each medium
_SUFFIX = ".checkpoint"


@dataclass(frozen=True, slots=True)
class Key:
    """Whose holdings, and how their keys are made: a checkpoint of another secret is not used.

    `stride`: of what is reported of them. It may differ from the one that they were saved under.
    """

    engine: EngineId
    secret: bytes
    stride: int

    def __repr__(self) -> str:
        return f"Key(engine={self.engine!r}, stride={self.stride})"  # the secret stays out of logs


@dataclass(frozen=True, slots=True)
class Saved:
    """Holdings as they were after one batch. `lost`: why something may be missing from them."""

    residency: Residency
    place: Place
    lost: str
    process_start_s: float | None


@dataclass(frozen=True, slots=True)
class Captured:
    """A copy of all that may change, in columns: no object for each block, hence no long pause."""

    place: Place
    lost: str
    process_start_s: float | None
    media: int
    block_size: int
    group: int | None
    group_told: bool
    blocks: Sequence[Block]
    parents: Sequence[Block | None]
    copies: Sequence[int]
    keys: Sequence[BlockKey | None]
    inner: Sequence[bytes]
    windows: Windows


def capture(saved: Saved) -> Captured | None:
    """Copy holdings in one step. `None`: they are of no use."""
    of = saved.residency
    if of.unusable:
        return None
    blocks = list(of._blocks.values())
    return Captured(
        place=saved.place,
        lost=saved.lost,
        process_start_s=saved.process_start_s,
        media=of.media,
        block_size=of.block_size,
        group=of._group,
        group_told=of._group_told,
        blocks=blocks,
        parents=[block.parent for block in blocks],
        copies=[block.copies for block in blocks],
        keys=[block.key for block in blocks],
        inner=[block.inner for block in blocks],
        windows=of._windows.copy(),
    )


class Checkpoints:
    """A directory of them, one file for each engine. Every call blocks: call it in a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, key: Key, captured: Captured) -> None:
        """Replace an engine's file at once. Raises `OSError`."""
        content = encode(key, captured)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(key.engine)
        written = path.with_suffix(".new")
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)

    def load(self, key: Key) -> Saved | str:
        """Return an engine's holdings as last saved, or why there are none to use."""
        path = self._path(key.engine)
        try:
            if path.stat().st_size > MAX_BYTES:
                return f"the checkpoint is over {MAX_BYTES} bytes"
            content = path.read_bytes()
        except FileNotFoundError:
            return "there is no checkpoint"
        except OSError as error:
            return f"the checkpoint cannot be read: {error.strerror}"
        return decode(key, content)

    def prune(self, now_unix: float) -> None:
        """Remove files of engines that are gone, as far as that can be done."""
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                if now_unix - path.stat().st_mtime > KEEP_S:
                    path.unlink()

    def _path(self, engine: EngineId) -> Path:
        return self._directory / f"{hashlib.sha256(engine.encode()).hexdigest()[:32]}{_SUFFIX}"


# --- the file -------------------------------------------------------------------------------------


class _Elsewhere(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The blocks of one KV group beside the chain's, in one medium."""

    group: int
    medium: Medium
    engine_keys: list[int | bytes]
    copies: list[Annotated[int, msgspec.Meta(ge=1)]]


class _File(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    engine: str
    secret: bytes  # its fingerprint
    seq: int
    mark: bytes
    lost: str
    process_start_s: float | None
    media: int
    block_size: int
    group: int | None
    group_told: bool
    engine_keys: list[int | bytes]
    parents: bytes  # int32: the parent's place, -1 for none
    copies: bytes
    keyed: bytes  # one byte a block: 1 if it has a key
    keys: bytes  # uint64
    inner_counts: bytes  # uint32
    inner: bytes  # uint64: the keys of the other units
    reaches: dict[int, int]
    elsewhere: list[_Elsewhere]


def encode(key: Key, captured: Captured) -> bytes:
    """Return a file's content."""
    body = msgspec.msgpack.encode(_to_file(key, captured))
    return b"".join((_MAGIC, VERSION.to_bytes(2, "little"), xxh3_128_digest(body), body))


def _to_file(key: Key, of: Captured) -> _File:
    places: dict[Block | None, int] = {block: at for at, block in enumerate(of.blocks)}
    places[None] = -1
    return _File(
        engine=key.engine,
        secret=_fingerprint(key.secret),
        seq=of.place.seq,
        mark=of.place.mark,
        lost=of.lost,
        process_start_s=of.process_start_s,
        media=of.media,
        block_size=of.block_size,
        group=of.group,
        group_told=of.group_told,
        engine_keys=[block.engine_key for block in of.blocks],
        parents=array("i", map(places.__getitem__, of.parents)).tobytes(),
        copies=b"".join([count.to_bytes(_COPIES_BYTES, "little") for count in of.copies]),
        keyed=bytes([key is not None for key in of.keys]),
        keys=array("Q", [key or 0 for key in of.keys]).tobytes(),
        inner_counts=array("I", [len(packed) // KEY_BYTES for packed in of.inner]).tobytes(),
        inner=b"".join(of.inner),
        reaches=of.windows.reaches(),
        elsewhere=[
            _Elsewhere(group, medium, list(copies), list(copies.values()))
            for (group, medium), copies in of.windows.copies.items()
        ],
    )


def _fingerprint(secret: bytes) -> bytes:
    return hashlib.sha256(b"lineside checkpoint\0" + secret).digest()[:8]


def decode(key: Key, content: bytes) -> Saved | str:
    """Return what a file says of `key`, or why it is of no use."""
    if not content.startswith(_MAGIC):
        return "the file is no checkpoint"
    version = int.from_bytes(content[len(_MAGIC) : len(_MAGIC) + 2], "little")
    if version != VERSION:
        return f"the checkpoint is of version {version} instead of {VERSION}"
    body = memoryview(content)[_HEAD:]
    if content[_HEAD - 16 : _HEAD] != xxh3_128_digest(body):
        return "the checkpoint's checksum is wrong"
    try:
        file = msgspec.msgpack.decode(body, type=_File)
    except msgspec.MsgspecError:
        return "the checkpoint cannot be decoded"
    if file.engine != key.engine:
        return "the checkpoint is of another engine"
    if file.secret != _fingerprint(key.secret):
        return "the checkpoint was made with another secret"
    residency = _restore(key, file)
    if residency is None:
        return "the checkpoint contradicts itself"
    return Saved(residency, Place(file.seq, file.mark), file.lost, file.process_start_s)


def _restore(key: Key, file: _File) -> Residency | None:
    """Build the holdings anew. `None`: the columns do not fit together."""
    size = len(file.engine_keys)
    try:
        parents, keys = array("i", file.parents), array("Q", file.keys)
        counts = array("I", file.inner_counts)
    except ValueError:  # half a number at the end
        return None
    if {len(parents), len(keys), len(counts), len(file.keyed)} != {size}:
        return None
    if len(file.copies) != size * _COPIES_BYTES or len(file.inner) != sum(counts) * KEY_BYTES:
        return None
    if len(set(file.engine_keys)) != size or any(not -1 <= at < size for at in parents):
        return None
    if any(len(of.engine_keys) != len(of.copies) for of in file.elsewhere):
        return None
    blocks = [Block(engine_key) for engine_key in file.engine_keys]
    begin = 0
    for at, block in enumerate(blocks):
        start, end = at * _COPIES_BYTES, begin + counts[at] * KEY_BYTES
        block.copies = int.from_bytes(file.copies[start : start + _COPIES_BYTES], "little")
        block.key = BlockKey(keys[at]) if file.keyed[at] else None
        block.inner, begin = file.inner[begin:end], end
        if parents[at] >= 0:
            blocks[parents[at]].adopt(block)
    if sum(1 for _ in downwards(blocks)) != sum(file.keyed):
        return None  # some have no beginning
    return _rebuild(key, file, blocks)


def _rebuild(key: Key, file: _File, blocks: Sequence[Block]) -> Residency:
    of = Residency(key.secret, key.stride)
    of.media, of.block_size = file.media, file.block_size
    of._group, of._group_told = file.group, file.group_told
    of._blocks = {block.engine_key: block for block in blocks}
    elsewhere = {
        (each.group, each.medium): dict(zip(each.engine_keys, each.copies, strict=True))
        for each in file.elsewhere
    }
    of._windows = Windows(file.reaches, elsewhere)
    of.hit_points = bool(file.reaches)
    for block in blocks:
        copies = total(block.copies)
        of.blocks += copies
        if block.key is None:
            of.unkeyed_blocks += copies
    of.report_anew()
    return of
