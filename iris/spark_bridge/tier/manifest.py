"""Manifest: which objects are the tier of a shard.  An object that no manifest names is not in the tier.

Each change is a new manifest under a name of its own, so that none is ever written over; the one with the greatest term
and number counts.  The name ends with the id of its writer, made anew each time a bridge opens the log.  A writer looks
before and after it writes: if another one was at work, it treats its own manifest as void and stops.

A manifest names the hashes of its objects.  It is believed in what the log knows as well, or finds out by making the
object anew from its own segment: a program that can write to the storage can write a manifest, too.

Layout below the URL of the tier::

    BRIDGE/shard=0@EPOCH/00000000000000000000-00000000000000065536-1.parquet    first offset, the one behind, term
    BRIDGE/shard=0@EPOCH/_manifest/0000000001-0000000042-9c41e0f7.json          term, number, writer
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Self, final

import msgspec

from iris.kernel.config import MIB
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log import TierObject

MAX_MANIFEST: Final = 256 * MIB
"""Largest manifest, in bytes: some 200,000 objects."""

_MANIFEST_NAME: Final = re.compile(r"(\d{10})-(\d{10})-([0-9a-f]{8})\.json")
_OBJECT_NAME: Final = re.compile(r"(\d{20})-(\d{20})-(\d+)\.parquet")


@final
class ManifestName(NamedTuple):
    """Name of a manifest; the greatest counts."""

    term: int
    number: int
    writer: str

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read the name of a manifest; None: it is something else."""
        found = _MANIFEST_NAME.fullmatch(name)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])

    def __str__(self) -> str:
        return f"{self.term:010d}-{self.number:010d}-{self.writer}.json"

    @property
    def place(self) -> tuple[int, int]:
        """Term and number: one manifest has each pair, unless two bridges have written at a time."""
        return self.term, self.number


@final
class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag="1", tag_field="format"):
    """Objects of a shard in the tier.

    Attributes:
        bridge: name of the bridge.
        shard: id of the shard.
        objects: objects in order of their offsets.
    """

    bridge: str
    shard: str
    objects: Sequence[TierObject]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as it is stored."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode_manifest_untrusted(data: bytes, *, shard: str, name: str) -> Manifest:
    """Read a manifest.

    Raises:
        LogDamaged: it is something else, or of another shard.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise LogDamaged(f"the manifest {name} of the tier cannot be read: {error}") from None
    if manifest.shard != shard:
        raise LogDamaged(f"the manifest {name} of the tier is of shard {manifest.shard}, and not of {shard}")
    for found in manifest.objects:
        # A name leads nowhere else, and the index is made from these numbers.
        ordered = [found.first, *found.groups]
        if not (
            is_object(found.name)
            and found.first >= 0
            and found.size > 0
            and all(one < other for one, other in itertools.pairwise(ordered))
            and ordered[-1] == found.end
            and len(found.parts) == len(found.groups) + 1
            and all(0 <= part.start < part.start + part.size <= found.size for part in found.parts)
        ):
            raise LogDamaged(f"the manifest {name} of the tier names an object {found.name!r} that cannot be one")
    return manifest


def object_name(first: int, end: int, term: int) -> str:
    """Return the name of the object with the events ``first`` up to but not including ``end``."""
    return f"{first:020d}-{end:020d}-{term}.parquet"


def is_object(name: str) -> bool:
    """Return whether an object of the tier can have a name."""
    return _OBJECT_NAME.fullmatch(name) is not None


def term_of(name: str) -> int | None:
    """Return the term in which an object was written; None: it is none of the tier's."""
    found = _OBJECT_NAME.fullmatch(name)
    return None if found is None else int(found[3])


def shard_folder(bridge: str, shard: str) -> str:
    """Return the folder of a shard's objects."""
    return f"{bridge}/shard={shard}"
