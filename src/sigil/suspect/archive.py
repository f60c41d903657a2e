"""Zip archives as PyTorch reads them: entries one behind the other, stored as they are or deflated.

A zip archive says twice what it holds: in a directory at its end and in a header before each entry.
Readers differ in which of the two they believe and in where they look for the directory, and so a
file can be made to show one thing to the reader that checks it and another to the one that loads it.
Here the two must say the same, and entries, directory and end must follow each other without a gap. What
PyTorch does not mind does not keep a model closed: a wrong checksum, a comment or a few bytes at the end,
and entries that somebody has compressed.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from sigil.errors import SuspectError, shown

MAX_ENTRIES = 500_000
# Of an index of tensors: a thousand of them take about 100 KB.
MAX_RECORD_BYTES = 64 * 1024**2
# Weights hardly shrink; nothing but one number over and over shrinks like this.
MAX_RATIO = 1_000

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_DESCRIPTOR = struct.Struct("<4s3I")
_DESCRIPTOR_64 = struct.Struct("<4sI2Q")

_EFFORT, _DESCRIBED_AFTER, _UTF8 = 6, 8, 1 << 11
_STORED, _DEFLATED = 0, 8
# Fields that say sizes and names once more, in other words; unknown ones (-1) could.
_SAID_AGAIN = {-1, 0x0001, 0x7075}
# How far before its end PyTorch looks for the end of the directory.
_MAX_BEHIND = 0xFFFF


@dataclass(frozen=True)
class _Entry:
    """Where the header of one entry begins and its data lie, and their checksum."""

    name: str
    header: int
    size: int
    packed: int
    method: int
    checksum: int
    flags: int
    start: int = 0


class Archive:
    """A zip archive with entries that are named once and lie one behind the other.

    ``changed`` are the entries that were read and whose checksum was wrong. TorchScript is refused.
    """

    def __init__(self, content: memoryview, source: Path) -> None:
        self.source = source
        self._content = content
        self.changed: list[str] = []
        try:
            directory, count, end = self._find_directory()
            entries = self._read_directory(directory, count, end)
            self._entries = self._check_layout(entries, directory)
        except (struct.error, UnicodeDecodeError) as error:
            raise SuspectError(
                f"{source} is a damaged or truncated zip archive: its directory cannot be read."
            ) from error
        # PyTorch puts all entries into one folder, older exported programs have none.
        folders = {name.partition("/")[0] for name in self._entries if "/" in name}
        single = len(folders) == 1 and all("/" in name for name in self._entries)
        self._root = f"{folders.pop()}/" if single else ""

    def names(self) -> list[str]:
        """The entries, without the folder that holds all of them."""
        return [name.removeprefix(self._root) for name in self._entries]

    def read(self, name: str, *, limit: int | None = None) -> memoryview:
        """The bytes of the entry ``name``, which may have at most ``limit`` of them."""
        entry = self._entries.get(self._root + name)
        if entry is None:
            raise SuspectError(f"{self.source} is a damaged archive: it has no entry {shown(name)}.")
        if limit is not None and entry.size > limit:
            raise SuspectError(
                f"{self.source} has {entry.size:,} bytes in {shown(name)}, more than the limit of {limit:,}."
            )
        data = self._content[entry.start : entry.start + entry.packed]
        if entry.method == _DEFLATED:
            data = self._inflated(entry, data)
        if zlib.crc32(data) != entry.checksum:
            self.changed.append(name)
        return data

    def _inflated(self, entry: _Entry, data: memoryview) -> memoryview:
        if entry.size > MAX_RATIO * entry.packed:
            raise SuspectError(
                f"{self.source} has {shown(entry.name)} compressed more than {MAX_RATIO:,} times, as no "
                "weights can be: it is damaged or hostile."
            )
        try:
            inflated = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, entry.size + 1)
        except zlib.error:
            inflated = b""
        if len(inflated) != entry.size:
            raise SuspectError(
                f"{self.source} is a damaged archive: its entry {shown(entry.name)} cannot be unpacked."
            )
        return memoryview(inflated)

    def _find_directory(self) -> tuple[int, int, int]:
        """Offset of the directory, its number of entries, and the offset behind it."""
        content, size = self._content, len(self._content)
        if size < _END.size:
            raise struct.error("too short")
        # The last one that there is, which is what PyTorch takes.
        first = max(0, size - _END.size - _MAX_BEHIND)
        end = bytes(content[first:]).rfind(b"PK\x05\x06")
        if end < 0 or first + end + _END.size > size:
            raise SuspectError(
                f"{self.source} is a damaged or truncated zip archive: it does not end with its directory."
            )
        end += first
        _, disk, first_disk, here, count, length, offset, _ = _END.unpack_from(content, end)
        locator = end - _LOCATOR_64.size
        if locator >= 0 and bytes(content[locator : locator + 4]) == b"PK\x06\x07":
            end = locator - _END_64.size
            _, place_disk, place, disks = _LOCATOR_64.unpack_from(content, locator)
            if end < 0 or (place_disk, place, disks) != (0, end, 1):
                raise self._doubtful("its two ends do not lie one behind the other")
            large = _END_64.unpack_from(content, end)
            if large[:2] != (b"PK\x06\x06", _END_64.size - 12):
                raise self._doubtful("its two ends do not lie one behind the other")
            # The older end may say "see the newer one", and else must say the same.
            for value, limit, other in zip(
                (disk, first_disk, here, count, length, offset),
                (0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
                large[4:],
                strict=True,
            ):
                if value not in (other, limit):
                    raise self._doubtful("its two ends say different things")
            disk, first_disk, here, count, length, offset = large[4:]
        if disk or first_disk or here != count:
            raise self._doubtful("it is a part of several")
        if count > MAX_ENTRIES:
            raise SuspectError(
                f"{self.source} has {count:,} entries, more than the limit of {MAX_ENTRIES:,}."
            )
        if offset + length != end:
            raise self._doubtful("its directory does not lie where its end says")
        return offset, count, end

    def _read_directory(self, position: int, count: int, end: int) -> list[_Entry]:
        entries = []
        for _ in range(count):
            if position + _CENTRAL.size > end:
                raise struct.error("the directory ends early")
            fields = _CENTRAL.unpack_from(self._content, position)
            signature, _, _, flags, method, _, _, checksum, packed, size = fields[:10]
            name_length, extra_length, comment_length, disk, _, _, header = fields[10:]
            if signature != b"PK\x01\x02":
                raise struct.error("no entry")
            start = position + _CENTRAL.size
            position = start + name_length + extra_length + comment_length
            if position > end:
                raise struct.error("the directory ends early")
            name = _name(bytes(self._content[start : start + name_length]))
            extra = bytes(self._content[start + name_length : start + name_length + extra_length])
            if name is None:
                raise self._doubtful("it has an entry without a plain name")
            entries.append(_Entry(name, header, size, packed, method, checksum, flags))
            # PyTorch takes an archive for TorchScript by this entry.
            if "constants.pkl" in (name, name.partition("/")[2]):
                raise SuspectError(
                    f"{self.source} is a TorchScript archive, which holds code, and nothing of it was "
                    "loaded: give the model's state dict, as safetensors if possible."
                )
            # Sizes beyond 4 GB, which no suspect has, and other ways of saying them again.
            if _fields(extra) & _SAID_AGAIN or disk or (method == _STORED and packed != size):
                raise self._doubtful(f"its directory is not plain at {shown(name)}")
        for entry in entries:
            if entry.method not in (_STORED, _DEFLATED) or entry.flags & ~(
                _EFFORT | _DESCRIBED_AFTER | _UTF8
            ):
                raise SuspectError(
                    f"{self.source} has the entry {shown(entry.name)} encrypted or compressed in a way that "
                    "PyTorch does not read: save the model again."
                )
        if position != end:
            raise self._doubtful("there is something behind its directory")
        claimed = sum(entry.packed for entry in entries)
        if claimed > len(self._content):
            raise SuspectError(
                f"{self.source} claims to hold {claimed:,} bytes, more than the file has: it is "
                "damaged or hostile."
            )
        # PyTorch looks entries up without regard to case.
        if len({entry.name.lower() for entry in entries}) != count:
            raise SuspectError(f"{self.source} has two entries of one name, which PyTorch never writes.")
        return entries

    def _check_layout(self, entries: list[_Entry], directory: int) -> dict[str, _Entry]:
        """Walk the file from its start: each entry's own header must repeat what the directory says."""
        content, position = self._content, 0
        placed = {}
        for entry in sorted(entries, key=lambda entry: entry.header):
            if entry.header != position or position + _LOCAL.size > directory:
                raise self._doubtful(f"there is a gap or an overlap before {shown(entry.name)}")
            fields = _LOCAL.unpack_from(content, position)
            signature, _, flags, method, _, _, checksum, packed, size, name_length, extra_length = fields
            start = position + _LOCAL.size + name_length + extra_length
            name = _name(bytes(content[position + _LOCAL.size :][:name_length]))
            extra = bytes(content[position + _LOCAL.size + name_length : start])
            same = (entry.checksum, entry.packed, entry.size)
            said = (checksum, packed, size)
            after = bool(flags & _DESCRIBED_AFTER)
            if (
                (signature, flags, method, name) != (b"PK\x03\x04", entry.flags, entry.method, entry.name)
                or _fields(extra) & _SAID_AGAIN
                or not (said == same or (after and said == (0, 0, 0)))
                or start + entry.packed > directory
            ):
                raise self._doubtful(f"the entry {shown(entry.name)} is not what its directory says")
            position = start + entry.packed
            if after:
                position = self._behind_descriptor(position, same, entry.name)
            placed[entry.name] = replace(entry, start=start)
        if position != directory:
            raise self._doubtful("there is a gap before its directory")
        return {entry.name: placed[entry.name] for entry in entries}

    def _behind_descriptor(self, position: int, same: tuple[int, int, int], name: str) -> int:
        """The offset behind the checksum and sizes that follow an entry."""
        for form in (_DESCRIPTOR, _DESCRIPTOR_64):
            found = self._content[position : position + form.size]
            if len(found) == form.size and form.unpack(found) == (b"PK\x07\x08", *same):
                return position + form.size
        raise self._doubtful(f"the entry {shown(name)} is not what its directory says")

    def _doubtful(self, why: str) -> SuspectError:
        return SuspectError(
            f"{self.source} is no zip archive that all readers understand alike ({why}), and nothing of "
            "it was loaded: save the model again with torch.save."
        )


def _name(raw: bytes) -> str | None:
    """The name of an entry if it is plain text, as PyTorch writes it: None if it is not."""
    return raw.decode("ascii") if raw and raw.isascii() and raw.decode("ascii").isprintable() else None


def _fields(extra: bytes) -> set[int]:
    """The kinds of additional fields of an entry; what cannot be taken apart counts as an unknown one."""
    kinds, position = set(), 0
    while position < len(extra):
        if position + 4 > len(extra):
            return {-1}
        kind, length = struct.unpack_from("<2H", extra, position)
        kinds.add(kind)
        position += 4 + length
    return kinds if position == len(extra) else {-1}
