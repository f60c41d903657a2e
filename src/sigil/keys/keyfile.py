"""The file a secret key is kept in: one line of canonical JSON, mode 0600.

    {"format":"sigil-key/2","statement":{…},"token":"…","seed":"…","checksum":"…"}

`statement` is the key's statement as it is published, `token` the time stamp of a stamped key in base64,
without which its secrets cannot be derived; a plain key has none.

With a passphrase, `seed` gives way to `scrypt` (how the passphrase becomes an AES-256 key) and
`sealed` (nonce and AES-GCM ciphertext of the seed, authenticated together with all other fields).
`checksum` is the SHA-256 of everything before it; it tells a damaged file from a wrong passphrase
before any passphrase is tried. There is one correct spelling of each file and no other is accepted,
so every changed byte is an error.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import stat
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from sigil import errors, files
from sigil.errors import ConfigError, KeyFileError, KeyFileWarning, SealError, SigilError, no_key_file
from sigil.keys import seal, statement
from sigil.keys.seal import Seal
from sigil.keys.statement import KeyFields

P = ParamSpec("P")
R = TypeVar("R")

FORMAT: Final = 2
MAX_FILE_BYTES: Final = 65_536

_MAGIC: Final = b'{"format":"sigil-key/'
_NONCE_BYTES: Final = 12
_SCRYPT: Final = {"n": 2**15, "r": 8, "p": 1}  # 32 MB and about 0.1 s per guess
# A file may ask for more work than this release writes, but not for all memory of the machine.
_SCRYPT_N: Final = tuple(2**power for power in range(10, 19))
_SCRYPT_R: Final = (8,)
_SCRYPT_P: Final = (1, 2, 3, 4)


@dataclass(frozen=True)
class Content:
    """What a key file holds: the statement's text, the time stamp if there is one, and the secret seed."""

    statement: str
    token: bytes | None = field(repr=False)
    seed: bytes = field(repr=False)


def without_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Raise errors anew, without the frames and errors below, which hold secrets.

    Some error reporters record local variables.
    """

    @functools.wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        failure: SigilError
        try:
            return function(*args, **named)
        except (KeyFileError, ConfigError) as error:
            failure = type(error)(str(error))
        del args, named
        raise failure

    return call


@without_frames
def write(
    path: str | os.PathLike[str],
    content: Content,
    *,
    passphrase: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a file that appears at `path` whole or not at all and that nobody else can read.

    An existing one is refused unless `overwrite` is true.
    """
    data = _serialise(content, passphrase)
    if not overwrite and os.path.lexists(path):
        raise KeyFileError(
            f"The key file {path} cannot be written: it exists already; choose another name, or replace it "
            "(overwrite=True, --force)."
        )
    files.write(path, data, replace=overwrite, mode=0o600, raises=KeyFileError)


@without_frames
def read(path: str | os.PathLike[str], *, passphrase: str | None = None) -> Content:
    """Read a key file, with its passphrase if it has one."""
    place = Path(path)
    content = _parse(_fetch(place), str(place), passphrase)
    _warn_if_open(place)
    return content


def unpack(content: Content, path: str) -> tuple[KeyFields, bytes, Seal | None]:
    """What a key is made of: its fields, its seed and its seal, which must give the commitment stated."""
    known = statement.parse(content.statement)
    if known is None or statement.state(known.fields, content.seed).commitment != known.commitment:
        raise KeyFileError(
            f"{path} contradicts itself: what it says in public and its seed do not "
            "give the commitment it states; restore the file from a backup."
        )
    if content.token is None:
        return known.fields, content.seed, None
    if known.fields.seal == "none":
        raise KeyFileError(f"{path} contradicts itself: it holds a seal that it does not state; restore it.")
    try:
        return known.fields, content.seed, seal.read(content.token, known.digest)
    except SealError as error:
        raise KeyFileError(f"The time stamp in {path} is not sound. {error}") from None


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _finish(document: dict[str, Any]) -> bytes:
    checksum = hashlib.sha256(_dump(document)).hexdigest()
    return _dump(document | {"checksum": checksum}) + b"\n"


def _serialise(content: Content, passphrase: str | None) -> bytes:
    header: dict[str, Any] = {"format": f"sigil-key/{FORMAT}", "statement": json.loads(content.statement)}
    if content.token is not None:
        header["token"] = base64.b64encode(content.token).decode()
    if passphrase is None:
        return _finish(header | {"seed": content.seed.hex()})
    salt = secrets.token_bytes(16)
    header["scrypt"] = {**_SCRYPT, "salt": salt.hex()}
    nonce = secrets.token_bytes(_NONCE_BYTES)
    cipher = AESGCM(_stretch(passphrase, salt, **_SCRYPT))
    sealed = nonce + cipher.encrypt(nonce, content.seed, _dump(header))
    return _finish(header | {"sealed": sealed.hex()})


def _stretch(passphrase: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    """The AES-256 key of a passphrase, the same however its accents were typed."""
    if not passphrase:
        raise KeyFileError("The passphrase is empty; give one of at least one character.")
    try:
        secret = unicodedata.normalize("NFC", passphrase).encode()
    except UnicodeEncodeError:
        raise KeyFileError("The passphrase is not valid text; give it in UTF-8.") from None
    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(secret)


def _parse(data: bytes, path: str, passphrase: str | None) -> Content:
    """The content of a file; all that can be checked without the passphrase is checked before it."""
    found = re.match(rb'\{"format":"sigil-key/([1-9][0-9]{0,8})"', data)
    if found is not None and int(found[1]) != FORMAT:
        what = "install a newer release of Sigil"
        if int(found[1]) < FORMAT:
            what = "that was a draft which no release wrote, so make a new key with `sigil key new`"
        raise KeyFileError(
            f"{path} has key file format {int(found[1])}, but this release reads format {FORMAT}; {what}."
        )
    if len(data) > MAX_FILE_BYTES or not (data.startswith(_MAGIC) or _MAGIC.startswith(data)):
        if data.startswith(b'{"alpha":') and b'"format":"sigil-statement/' in data:
            raise KeyFileError(f"{path} holds the public statement of a key; give the key file itself.")
        raise KeyFileError(f"{path} is not a Sigil key file; give one that `sigil key new` wrote.")
    if not data.endswith(b"}\n"):
        raise KeyFileError(f"{path} is truncated: its end is missing; restore it from a backup.")
    document = _document(data)
    if document is None:
        raise KeyFileError(f"{path} is damaged: its content has changed; restore it from a backup.")
    token = base64.b64decode(document["token"]) if "token" in document else None
    return Content(_dump(document["statement"]).decode(), token, _seed(document, path, passphrase))


def _document(data: bytes) -> dict[str, Any] | None:
    """The content of a file without its checksum, or None if any byte is not as it was written."""
    try:
        content = json.loads(data)
        checked = isinstance(content, dict) and _well_formed(content)
        if checked:
            del content["checksum"]
            checked = _finish(content) == data
    except (ValueError, RecursionError):
        checked = False
    return content if checked else None


def _well_formed(content: dict[str, Any]) -> bool:
    names = ("format", "statement", *(("token",) if "token" in content else ()))
    if tuple(content) == (*names, "scrypt", "sealed", "checksum"):
        scrypt = content["scrypt"]
        secret = (
            isinstance(scrypt, dict)
            and tuple(scrypt) == ("n", "r", "p", "salt")
            and all(type(scrypt[name]) is int for name in "nrp")
            and _is_hex(scrypt["salt"], 16)
            and _is_hex(content["sealed"], _NONCE_BYTES + 32 + 16)
        )
    else:
        secret = tuple(content) == (*names, "seed", "checksum") and _is_hex(content["seed"], 32)
    # The statement is taken apart by those who know it.
    return secret and isinstance(content["statement"], dict) and _is_base64(content.get("token", ""))


def _is_base64(value: object) -> bool:
    """Whether this is base64 in its one spelling."""
    try:
        return isinstance(value, str) and base64.b64encode(base64.b64decode(value)).decode() == value
    except ValueError:
        return False


def _is_hex(value: object, size: int) -> bool:
    return isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{2 * size}}}", value) is not None


def _seed(document: dict[str, Any], path: str, passphrase: str | None) -> bytes:
    if "seed" in document:
        return bytes.fromhex(document["seed"])
    n, r, p = (document["scrypt"][name] for name in "nrp")
    if n not in _SCRYPT_N or r not in _SCRYPT_R or p not in _SCRYPT_P:
        raise KeyFileError(
            f"{path} asks for scrypt parameters that this release does not allow (n={n}, r={r}, "
            f"p={p}); use a file that `sigil key new` wrote."
        )
    if passphrase is None:
        raise KeyFileError(
            f"{path} is locked with a passphrase; give it with --passphrase, --passphrase-file, "
            "the variable SIGIL_PASSPHRASE, or Key.load(path, passphrase=...)."
        )
    key = _stretch(passphrase, bytes.fromhex(document["scrypt"]["salt"]), n=n, r=r, p=p)
    sealed = bytes.fromhex(document["sealed"])
    header = {name: value for name, value in document.items() if name != "sealed"}
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _dump(header))
    except InvalidTag:
        raise KeyFileError(
            f"The passphrase of {path} is wrong; the file itself is whole, so try another one."
        ) from None


def _fetch(path: Path) -> bytes:
    """The first bytes of a file, one more than a key file may have."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise no_key_file(path) from None
    except PermissionError:
        reason = "permission is denied; a key file belongs to the user who made it (mode 0600)"
    except (OSError, ValueError) as error:
        reason = f"{errors.reason(error).lower()}; give the path of a file that `sigil key new` wrote"
    raise KeyFileError(f"The key file {path} cannot be read: {reason}.")


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write, should the file be a pipe; one that is filled is read."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def _warn_if_open(path: Path) -> None:
    """A key that others can read may be theirs as well; systems without such modes say nothing."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            warnings.warn(
                f"The key file {path} can be read by other users of this machine (mode {mode:04o}); "
                f"make it yours alone: chmod 600 {path}",
                KeyFileWarning,
                stacklevel=2,
            )
