"""The file a secret key is kept in: one line of canonical JSON, mode 0600.

    {"format":"sigil-key/2","statement":{…},"token":"…","seed":"…","checksum":"…"}

`statement` is the key's statement as it is published, `token` the time stamp of a stamped key in base64,
without which its secrets cannot be derived; a plain key has none. Format 1, which has the few fields of
an old key in the statement's place, is read and written for such keys:

    {"format":"sigil-key/1","version":1,"owner":"ACME","shape":[256,8,8],"bits":50,
     "commitment":"…","seed":"…","checksum":"…"}

With a passphrase, `seed` gives way to `scrypt` (how the passphrase becomes an AES-256 key) and
`sealed` (nonce and AES-GCM ciphertext of the seed, authenticated together with all other fields).
`checksum` is the SHA-256 of everything before it; it tells a damaged file from a wrong passphrase
before any passphrase is tried. There is one correct spelling of each file and no other is accepted,
so every changed byte is an error.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import unicodedata
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from sigil import arguments, files
from sigil.errors import KeyFileError, KeyFileWarning, no_key_file

FORMAT: Final = 2
MAX_FILE_BYTES: Final = 65_536
MAX_OLD_FILE_BYTES: Final = 4096

_MAGIC: Final = b'{"format":"sigil-key/'
_NONCE_BYTES: Final = 12
_SCRYPT: Final = {"n": 2**15, "r": 8, "p": 1}  # 32 MB and about 0.1 s a guess
# A file may ask for more work than this release writes, but not for all memory of the machine.
_SCRYPT_N: Final = tuple(2**power for power in range(10, 19))
_SCRYPT_R: Final = (8,)
_SCRYPT_P: Final = (1, 2, 3, 4)


@dataclass(frozen=True)
class Stated:
    """What a key file holds: the statement's text, the time stamp if there is one, and the secret seed."""

    statement: str
    token: bytes | None = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(frozen=True)
class Fields:
    """What a key file of format 1 holds; `seed` is the secret and stays out of the representation."""

    version: int
    owner: str
    shape: tuple[int, ...]
    bits: int
    commitment: str
    seed: bytes = field(repr=False)


def write(
    path: str | os.PathLike[str],
    fields: Fields | Stated,
    *,
    passphrase: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a key file atomically; an existing one is refused unless `overwrite` is true."""
    failure: KeyFileError
    try:
        place = arguments.path("place of a key file", path, raises=KeyFileError)
        return _store(place, _serialise(fields, passphrase), overwrite=overwrite)
    except KeyFileError as error:
        failure = KeyFileError(str(error))
    raise failure


def read(path: str | os.PathLike[str], *, passphrase: str | None = None) -> Fields | Stated:
    """Read a key file, with its passphrase if it has one.

    Every failure is a fresh `KeyFileError` that carries neither the frames nor the errors below it:
    those hold the text of the file, and some error reporters record local variables.
    """
    failure: KeyFileError
    try:
        place = arguments.path("place of a key file", path, raises=KeyFileError)
        content = _parse(_fetch(place), str(place), passphrase)
        _warn_if_open(place)
        return content
    except KeyFileError as error:
        failure = KeyFileError(str(error))
    raise failure


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _finish(document: dict[str, Any]) -> bytes:
    checksum = hashlib.sha256(_dump(document)).hexdigest()
    return _dump(document | {"checksum": checksum}) + b"\n"


def _header(fields: Fields | Stated) -> dict[str, Any]:
    if isinstance(fields, Stated):
        header = {"format": "sigil-key/2", "statement": json.loads(fields.statement)}
        token = {} if fields.token is None else {"token": base64.b64encode(fields.token).decode()}
        return header | token
    return {
        "format": "sigil-key/1",
        "version": fields.version,
        "owner": fields.owner,
        "shape": list(fields.shape),
        "bits": fields.bits,
        "commitment": fields.commitment,
    }


def _serialise(fields: Fields | Stated, passphrase: str | None) -> bytes:
    header = _header(fields)
    if passphrase is None:
        return _finish(header | {"seed": fields.seed.hex()})
    salt = secrets.token_bytes(16)
    header["scrypt"] = {**_SCRYPT, "salt": salt.hex()}
    nonce = secrets.token_bytes(_NONCE_BYTES)
    cipher = AESGCM(_stretch(passphrase, salt, **_SCRYPT))
    sealed = nonce + cipher.encrypt(nonce, fields.seed, _dump(header))
    return _finish(header | {"sealed": sealed.hex()})


def _stretch(passphrase: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    """The AES-256 key of a passphrase, the same however its accents were typed."""
    if not isinstance(passphrase, str):
        raise KeyFileError(f"The passphrase is of type {type(passphrase).__name__}, but text is wanted.")
    if not passphrase:
        raise KeyFileError("The passphrase is empty; give one of at least one character.")
    try:
        secret = unicodedata.normalize("NFC", passphrase).encode()
    except UnicodeEncodeError:
        raise KeyFileError("The passphrase is not valid text; give it in UTF-8.") from None
    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(secret)


def _parse(data: bytes, path: str, passphrase: str | None) -> Fields | Stated:
    """The fields of a file; all that can be checked without the passphrase is checked before it."""
    found = re.match(rb'\{"format":"sigil-key/([1-9][0-9]{0,8})"', data)
    if found is not None and int(found[1]) > FORMAT:
        raise KeyFileError(
            f"{path} has key file format {int(found[1])}, but this release reads formats 1 to {FORMAT}; "
            "install a newer release of Sigil."
        )
    longest = MAX_FILE_BYTES if found is not None and int(found[1]) == FORMAT else MAX_OLD_FILE_BYTES
    if len(data) > longest or not (data.startswith(_MAGIC) or _MAGIC.startswith(data)):
        raise KeyFileError(f"{path} is not a Sigil key file; give one that `sigil key new` wrote.")
    if not data.endswith(b"}\n"):
        raise KeyFileError(f"{path} is truncated: its end is missing; restore it from a backup.")
    document = _document(data)
    if document is None:
        raise KeyFileError(f"{path} is damaged: its content has changed; restore it from a backup.")
    if "statement" in document:
        token = base64.b64decode(document["token"]) if "token" in document else None
        return Stated(_dump(document["statement"]).decode(), token, _seed(document, path, passphrase))
    return Fields(
        version=document["version"],
        owner=document["owner"],
        shape=tuple(document["shape"]),
        bits=document["bits"],
        commitment=document["commitment"],
        seed=_seed(document, path, passphrase),
    )


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
    if content.get("format") == "sigil-key/1":
        names: tuple[str, ...] = ("format", "version", "owner", "shape", "bits", "commitment")
        known = _old_fields
    else:
        names = ("format", "statement", *(("token",) if "token" in content else ()))
        known = _stated
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
    return secret and known(content)


def _old_fields(content: dict[str, Any]) -> bool:
    return (
        isinstance(content["owner"], str)
        and isinstance(content["shape"], list)
        # Not isinstance: true and false are integers to Python, but not in a key file.
        and all(type(n) is int for n in (content["version"], content["bits"], *content["shape"]))
        and _is_hex(content["commitment"], 32)
    )


def _stated(content: dict[str, Any]) -> bool:
    """Whether the token has its one spelling; the statement is taken apart by those who know it."""
    if not isinstance(content["statement"], dict):
        return False
    if "token" not in content:
        return True
    try:
        spelt = base64.b64encode(base64.b64decode(content["token"], validate=True)).decode()
    except (ValueError, TypeError):
        return False
    return spelt == content["token"]


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
        reason = f"{_reason(error)}; give the path of a file that `sigil key new` wrote"
    raise KeyFileError(f"The key file {path} cannot be read: {reason}.")


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write, should the file be a pipe; one that is filled is read."""
    found = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(found, True)
    return found


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


def _store(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Write a file that appears at `path` whole or not at all, and that nobody else can read."""
    try:
        with files.draft(path, replace=overwrite, mode=0o600) as place, place.open("r+b") as file:
            file.write(data)
        return
    except FileExistsError:
        reason = "it exists already; choose another name, or replace it (overwrite=True, --force)"
    except FileNotFoundError:
        reason = "its directory does not exist; make the directory first"
    except PermissionError:
        reason = "permission is denied; choose a directory that you may write to"
    except (OSError, ValueError) as error:
        reason = f"{_reason(error)}; choose another path"
    raise KeyFileError(f"The key file {path} cannot be written: {reason}.")


def _reason(error: OSError | ValueError) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
