"""How a key's secrets follow from its seed, its public fields and its seal.

HKDF-SHA256 turns the seed into one independent subkey per purpose: "matrix", "target", "probes",
"inputs", "share", "initial/<tensor>", "imprint/<digest>/<recipient>". With F the encoding of the fields
(`KeyFields.encoded`), S the statement and σ the seal (32 zero bytes of a plain key):

    evidence key = HKDF(seed, salt "sigil key v2", info LP("evidence") ‖ F)
    commitment   = SHA-256(LP("sigil commitment v2") ‖ F ‖ LP(evidence public key) ‖ LP(seed))
    subkey       = HKDF(seed, salt σ, info LP("sigil v2") ‖ LP(purpose) ‖ SHA-256(S))

The evidence key cannot depend on the seal, since its public half is in the statement that is sealed.
docs/formats.md says what each part is for.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sigil.keys.statement import KeyFields, Statement, length_prefixed

_SALT: Final = b"sigil key v2"
_COMMITMENT: Final = b"sigil commitment v2"
_SUBKEY: Final = b"sigil v2"


def evidence_key(fields: KeyFields, seed: bytes) -> Ed25519PrivateKey:
    """The Ed25519 key that signs the owner's evidence."""
    secret = _hkdf(seed, _SALT, length_prefixed(b"evidence") + fields.encoded())
    return Ed25519PrivateKey.from_private_bytes(secret)


def state(fields: KeyFields, seed: bytes) -> Statement:
    """The statement of the key with these fields and this seed: its commitment binds all of it."""
    public = evidence_key(fields, seed).public_key().public_bytes_raw()
    parts = length_prefixed(public) + length_prefixed(seed)
    committed = hashlib.sha256(length_prefixed(_COMMITMENT) + fields.encoded() + parts)
    return Statement(fields, committed.hexdigest(), public.hex())


def subkey(statement: Statement, seed: bytes, sigma: bytes, purpose: str) -> bytes:
    """The subkey of one purpose, 32 bytes; `sigma` is the seal, all zero for a plain key."""
    named = purpose.encode("utf-8", "surrogatepass")  # the name of a suspect's tensor can be any text
    info = length_prefixed(_SUBKEY) + length_prefixed(named) + statement.digest
    return _hkdf(seed, sigma, info)


def _hkdf(seed: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(seed)
