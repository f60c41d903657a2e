"""Zip archives as PyTorch writes them: everything stored as it is, nothing compressed."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import TracebackType
from typing import Self

from sigil.errors import SuspectError, reason
from sigil.models.spec import shown

MAX_ENTRIES = 100_000
# Of an index of tensors: a thousand of them take about 100 KB.
MAX_RECORD_BYTES = 4 * 1024**2

# What zipfile raises on hostile bytes.
_DAMAGE = (zipfile.BadZipFile, OSError, ValueError, KeyError, EOFError, RuntimeError)


class Archive:
    """A zip archive whose entries are stored, named once and no larger together than the file.

    PyTorch compresses no weights. So nothing here can unpack to more than it weighs, and the reader
    that checks an entry and the one that loads it see the same bytes. TorchScript is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise SuspectError(f"{path} is a damaged or truncated zip archive: {reason(error)}.") from error
        try:
            self._check()
        except SuspectError:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._zip.close()

    def _check(self) -> None:
        entries = self._zip.infolist()
        if len(entries) > MAX_ENTRIES:
            raise SuspectError(
                f"{self.path} has {len(entries):,} entries, more than the limit of {MAX_ENTRIES:,}."
            )
        self._sizes = {entry.filename: entry.file_size for entry in entries}
        if len(self._sizes) != len(entries):
            raise SuspectError(f"{self.path} has two entries of one name, which PyTorch never writes.")
        # PyTorch puts all entries into one folder, older exported programs have none.
        folders = {name.partition("/")[0] for name in self._sizes if "/" in name}
        single = len(folders) == 1 and all("/" in name for name in self._sizes)
        self._root = f"{folders.pop()}/" if single else ""
        if any(name == "constants.pkl" or name.startswith("code/") for name in self.names()):
            raise SuspectError(
                f"{self.path} is a TorchScript archive, which holds code, and nothing of it was "
                "loaded: give the model's state dict, as safetensors if possible."
            )
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise SuspectError(
                    f"{self.path} has the compressed or encrypted entry {shown(entry.filename)}, "
                    "which neither torch.save nor torch.export.save writes: save the model again."
                )
        claimed = sum(self._sizes.values())
        if claimed > self.path.stat().st_size:
            raise SuspectError(
                f"{self.path} claims to hold {claimed:,} bytes, more than the file has: it is "
                "damaged or hostile."
            )

    def names(self) -> list[str]:
        """The entries, without the folder that holds all of them."""
        return [name.removeprefix(self._root) for name in self._sizes]

    def read(self, name: str, *, limit: int | None = None) -> bytes:
        """The bytes of the entry ``name``, which may have at most ``limit`` of them."""
        size = self._sizes.get(self._root + name, 0)
        if limit is not None and size > limit:
            raise SuspectError(
                f"{self.path} has {size:,} bytes in {shown(name)}, more than the limit of {limit:,}."
            )
        try:
            return self._zip.read(self._root + name)
        except _DAMAGE as error:
            raise SuspectError(
                f"{self.path} is a damaged archive: its entry {shown(name)} cannot be read."
            ) from error
