"""A time-stamping authority of one's own (RFC 3161), for demonstrations and tests.

It does what a real authority does, and its stamps are worth nothing outside: who runs an authority can
stamp as often as they like, with any date.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sigil.errors import SealError
from sigil.keys import der
from sigil.keys.stamping import MAX_QUERY
from sigil.transport import certificates

_POLICY: Final = "1.3.6.1.4.1.99999.1"
_SHA256: Final = "2.16.840.1.101.3.4.2.1"
_YEARS: Final = timedelta(days=3650)
_Key = ec.EllipticCurvePrivateKey


class DemonstrationAuthority:
    """Answers queries for time stamps with a key and a root certificate that it makes for itself."""

    def __init__(self, name: str = "Demonstration") -> None:
        self._root_key, self._key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        root, leaf = f"{name} root", f"{name} time stamps"
        self.root = _certify(root, self._root_key, issuer=root, by=self._root_key, stamping=False)
        self.certificate = _certify(leaf, self._key, issuer=root, by=self._root_key, stamping=True)

    def root_pem(self) -> bytes:
        """The root certificate, which must be named to check a stamp of this authority."""
        return self.root.public_bytes(serialization.Encoding.PEM)

    def answer(self, query: bytes, *, moment: datetime | None = None) -> bytes:
        """The answer (TimeStampResp) to a query (TimeStampReq) with a SHA-256 imprint."""
        imprint, nonce = _read_query(query)
        time = (moment or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%d%H%M%SZ")
        info = der.write(
            der.SEQUENCE,
            der.write_integer(1),
            der.write_oid(_POLICY),
            imprint,
            der.write_integer(secrets.randbits(63)),
            der.write(der.TIME, time.encode()),
            nonce,
        )
        status = der.write(der.SEQUENCE, der.write_integer(0))
        return der.write(der.SEQUENCE, status, self._sign(info))

    def _sign(self, info: bytes) -> bytes:
        """TSTInfo as signed data (CMS), with the certificate named in what is signed (ESSCertIDv2)."""
        certificate = self.certificate.public_bytes(serialization.Encoding.DER)
        named = der.write(der.SEQUENCE, der.write(der.OCTETS, hashlib.sha256(certificate).digest()))
        attributes = (
            _attribute("1.2.840.113549.1.9.3", der.write_oid("1.2.840.113549.1.9.16.1.4")),
            _attribute("1.2.840.113549.1.9.4", der.write(der.OCTETS, hashlib.sha256(info).digest())),
            _attribute("1.2.840.113549.1.9.16.2.47", der.write(der.SEQUENCE, der.write(der.SEQUENCE, named))),
        )
        signature = self._key.sign(der.write_set(*attributes), ec.ECDSA(hashes.SHA256()))
        digest = der.write(der.SEQUENCE, der.write_oid(_SHA256))
        signer = der.write(
            der.SEQUENCE,
            der.write_integer(1),
            der.write(
                der.SEQUENCE,
                self.certificate.issuer.public_bytes(),
                der.write_integer(self.certificate.serial_number),
            ),
            digest,
            der.write_set(*attributes, tag=0xA0),
            der.write(der.SEQUENCE, der.write_oid("1.2.840.10045.4.3.2")),
            der.write(der.OCTETS, signature),
        )
        signed = der.write(
            der.SEQUENCE,
            der.write_integer(3),
            der.write_set(digest),
            der.write(
                der.SEQUENCE,
                der.write_oid("1.2.840.113549.1.9.16.1.4"),
                der.write(0xA0, der.write(der.OCTETS, info)),
            ),
            der.write_set(certificate, tag=0xA0),
            der.write_set(signer),
        )
        return der.write(der.SEQUENCE, der.write_oid("1.2.840.113549.1.7.2"), der.write(0xA0, signed))


def _read_query(query: bytes) -> tuple[bytes, bytes]:
    """The imprint and the nonce of a query, as they were encoded; the nonce may be missing."""
    try:
        if len(query) > MAX_QUERY:
            raise der.DerError("it is too long")
        version, imprint, *rest = der.read(query).inside(der.SEQUENCE)
        algorithm, hashed = imprint.inside(der.SEQUENCE)
        known = algorithm.inside(der.SEQUENCE)[0].oid() == _SHA256 and len(hashed.octets()) == 32
        if version.number() != 1 or not known:
            raise der.DerError("it asks for no SHA-256 hash")
    except (der.DerError, ValueError, IndexError):
        raise SealError("This is not a query for a time stamp over a SHA-256 hash.") from None
    nonces = [part.encoding for part in rest if part.tag == der.INTEGER]
    return imprint.encoding, b"".join(nonces[:1])


def _attribute(kind: str, value: bytes) -> bytes:
    return der.write(der.SEQUENCE, der.write_oid(kind), der.write_set(value))


def _certify(name: str, key: _Key, *, issuer: str, by: _Key, stamping: bool) -> x509.Certificate:
    named = certificates.named
    builder = (
        certificates.unsigned(named(name), named(issuer), key.public_key(), since=_YEARS, lasts=_YEARS)
        .add_extension(x509.BasicConstraints(ca=not stamping, path_length=None), critical=True)
        .add_extension(certificates.usage(signs=not stamping), critical=True)
    )
    if stamping:
        only = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        builder = builder.add_extension(only, critical=True)
    return builder.sign(by, hashes.SHA256())
