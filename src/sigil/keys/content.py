"""From a key to the content of its file and back: what a file says must hold together."""

from __future__ import annotations

from sigil.errors import ConfigError, KeyFileError, SealError
from sigil.keys import derivation, seal, statement
from sigil.keys.keyfile import Fields, Stated
from sigil.keys.seal import Seal
from sigil.keys.statement import KeyFields, Statement


def pack(stated: Statement, seed: bytes, stamp: Seal | None) -> Fields | Stated:
    """The content of the file of a key; a key of the old version keeps the old format."""
    fields = stated.fields
    if fields.version == 1:
        return Fields(
            version=1,
            owner=fields.owner,
            shape=fields.shape,
            bits=fields.bits,
            commitment=stated.commitment,
            seed=seed,
        )
    return Stated(stated.text, None if stamp is None else stamp.response, seed)


def unpack(content: Fields | Stated, path: str) -> tuple[KeyFields, bytes, Seal | None]:
    """What a key is made of: its fields, its seed and its seal, which must give the commitment stated."""
    if isinstance(content, Fields):
        fields, commitment, stamp = _old(content, path)
    else:
        fields, commitment, stamp = _stated(content, path)
    if fields is None or derivation.state(fields, content.seed).commitment != commitment:
        raise KeyFileError(
            f"{path} contradicts itself: what it says in public and its seed do not "
            "give the commitment it states; restore the file from a backup."
        )
    return fields, content.seed, stamp


def _old(content: Fields, path: str) -> tuple[KeyFields | None, str, None]:
    if content.version != 1:
        raise KeyFileError(
            f"{path} holds a key of scheme version {content.version}, but a file of format 1 has version 1 "
            "only; install a release that knows it."
        )
    try:
        fields = KeyFields(content.owner, content.shape, content.bits, version=1)
    except ConfigError:
        return None, "", None
    return fields if fields.owner == content.owner else None, content.commitment, None


def _stated(content: Stated, path: str) -> tuple[KeyFields | None, str, Seal | None]:
    known = statement.parse(content.statement)
    if known is None:
        return None, "", None
    if content.token is None:
        return known.fields, known.commitment, None
    if known.fields.seal == "none":
        raise KeyFileError(f"{path} contradicts itself: it holds a seal that it does not state; restore it.")
    try:
        return known.fields, known.commitment, seal.read(content.token, known.digest)
    except SealError as error:
        raise KeyFileError(f"The time stamp in {path} is not sound. {error}") from None
