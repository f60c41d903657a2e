"""What a command reads and writes, looked at before it works and before anything heavy is imported.

What it reads must be there, data sets included. What it writes is declared: nothing is ever destroyed.

A command never writes over a file that it reads, over another file that it writes, or over one that Sigil
did not write. A page or picture of Sigil's own is replaced where a command draws it again in its usual place,
and with ``--force`` elsewhere. Results go to regular files: pipes, devices and ``-`` are refused.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sigil import files
from sigil.errors import ConfigError, DataError, OutputError

EMBEDDED = ("digits", "digits32")
# A test compares this list with `sigil.data.names()`, which it costs seconds to ask.
NAMES = (*EMBEDDED, "cifar10", "tiny-imagenet", "fashion-mnist")


@dataclass(frozen=True)
class File:
    """A file that a command writes: the option that names it, and by what Sigil knows one of its own.

    Without a magic number, a file that is there is never replaced; with one, only with `force`.
    """

    option: str
    path: Path
    magic: files.Magic | None = None
    force: bool = False
    kind: str = "file"

    @property
    def replace(self) -> bool | files.Magic:
        """What :func:`sigil.files.write` may replace."""
        return self.magic if self.magic is not None and self.force else False


@dataclass(frozen=True)
class Folder:
    """A folder that a command writes to, made if it is not there, and the names that it writes inside."""

    option: str
    path: Path
    names: Sequence[str] = ()


def page(option: str, path: Path, *, force: bool) -> File:
    """An HTML page."""
    return File(option, path, files.PAGE, force, "page")


def picture(option: str, path: Path, *, force: bool) -> File:
    """A picture in one of the formats that matplotlib writes."""
    if path.suffix.lower() not in files.PICTURES:
        raise OutputError(f"{path} does not end in {', '.join(files.PICTURES)}; choose one of these.")
    return File(option, path, files.picture_magic(path), force, "picture")


def check(*outputs: File | Folder | None, inputs: Mapping[str, Path | None] | None = None) -> None:
    """Raise unless all outputs can be written without harm; `inputs` are the files read, by their options.

    To be called before any work. A folder among the inputs protects the files in it by their being there.
    """
    check_there(inputs or {})
    wanted = [output for output in outputs if output is not None]
    check_apart(wanted, inputs or {})
    for output in wanted:
        try:
            _check_place(output)
        except OutputError as error:
            raise OutputError(f"{output.option}: {error}") from None


# Options whose value need not be a file: a data set has a name.
_NOT_FILES = frozenset({"--inputs", "--data", "--data-dir"})


def there(path: Path) -> bool:
    """Whether a file or folder exists; an impossible name is left to its reader to explain."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return True


def check_there(inputs: Mapping[str, Path | None]) -> None:
    """Raise if a file or folder that a command reads does not exist, before anything heavy is imported."""
    for option, path in inputs.items():
        if path is None or option in _NOT_FILES or path == Path("-"):
            continue
        if not there(path):
            raise ConfigError(f"{path} cannot be read: it does not exist; check {option}.")


def check_data(option: str, name: str | None, data_dir: Path | None = None) -> None:
    """Raise if a data set is a folder, or in a directory, that does not exist."""
    if name is None:
        return
    kind, _, rest = name.partition(":")
    if kind == "folder" and rest and not there(Path(rest).expanduser()):
        raise DataError(f"{rest} cannot be read: it does not exist; check {option}.")
    directory = str(data_dir) if data_dir is not None else os.environ.get("SIGIL_DATA")
    if kind in NAMES and kind not in EMBEDDED and directory and not there(Path(directory).expanduser()):
        raise DataError(
            f"{directory} does not exist, where {kind} was looked for; check --data-dir, or download it with "
            f"`sigil data fetch {kind} --data-dir {directory}`."
        )


def check_inputs(source: str | None, data_dir: Path | None = None) -> None:
    """Raise if inputs to read a mark on are neither a file nor a folder nor a data set."""
    if source is None or there(Path(source).expanduser()):
        return
    kind = source.partition(":")[0]
    if kind in (*NAMES, "folder", "hub"):
        check_data("--inputs", source, data_dir)
    elif os.sep in source or Path(source).suffix:
        raise DataError(f"{source} cannot be read: it does not exist; check --inputs.")


def check_changes(changes: Sequence[str], data_dir: Path | None) -> None:
    """Raise if settings given one by one name a data set that is not there."""
    for change in changes:
        name, equals, value = change.partition("=")
        if equals and name.strip() == "data.name":
            check_data("--set data.name", value.strip().strip("\"'"), data_dir)


def _check_place(output: File | Folder) -> None:
    if isinstance(output, Folder):
        files.check_folder(output.path)
    elif output.magic is not None and not output.force and output.magic.matches(output.path):
        raise OutputError(
            f"{output.path} exists; choose another name, or give --force to replace this {output.kind}."
        )
    else:
        files.check(output.path, replace=output.magic or False, kind=output.kind)


def check_apart(outputs: Sequence[File | Folder], inputs: Mapping[str, Path | None]) -> None:
    """Raise if an output is one of the inputs or another output, under whatever name."""
    for number, output in enumerate(outputs):
        if output.path == Path("-"):
            raise OutputError(
                f"{output.option} is -, but results are written to files, not to standard output; "
                "give the name of a file."
            )
        for option, path in inputs.items():
            if path is not None and _over(output, path):
                raise OutputError(
                    f"{output.option} {output.path} would write over {option} {path}, and what a command "
                    "reads is never overwritten; choose another name."
                )
        for other in outputs[:number]:
            if _over(output, other.path) or _over(other, output.path):
                raise OutputError(
                    f"{other.option} {other.path} and {output.option} {output.path} are the same file; "
                    "choose two names."
                )


def _over(output: File | Folder, path: Path) -> bool:
    """Whether writing `output` could change the file at `path`."""
    if isinstance(output, File):
        return _same(output.path, path)
    parents = Path(os.path.realpath(path)).parents
    return any(_same(output.path / name, other) for name in output.names for other in (path, *parents))


def _same(first: Path, other: Path) -> bool:
    """Whether two names are of one file: also through links, `..`, and where case makes no difference."""
    try:
        if os.path.samefile(first, other):
            return True
    except (OSError, ValueError):
        pass  # one of them does not exist, or its name is impossible
    return _folded(first) == _folded(other)


def _folded(path: Path) -> str:
    """A name that is equal for all spellings that some file system takes for one file."""
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError):
        real = os.path.abspath(path)
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", real).casefold())
