"""The seal of a key: an RFC 3161 time stamp over its statement, which dates the key and is part of it.

A stamped key's secrets follow from its seed and from the authority's signature, so that trying another
key costs another dated request. Only what the authority signed counts:

    σ = SHA-256(LP("sigil seal rfc3161 v2") ‖ LP(DER TSTInfo) ‖ LP(signature))

with the signature in one form (RSA: an integer of the modulus' length; ECDSA: r ‖ min(s, n − s);
Ed25519: 64 bytes). The rest of the answer, such as its certificates and unsigned attributes, can be
altered by anybody afterwards and changes nothing.

`read` checks all that follows from the answer itself; `Seal.check` follows the chain of certificates to
a root that the caller trusts. Anybody who controls an authority can ask it as often as they like, so the root
is never taken from the answer. The answer is taken apart by :mod:`sigil.keys.der`: `rfc3161-client`, which
follows the chain, shows neither the signature nor what is signed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils
from cryptography.x509.oid import ExtendedKeyUsageOID

from sigil.errors import SealError
from sigil.keys import der
from sigil.keys.statement import length_prefixed

MAX_TOKEN: Final = 32_768
MAX_ROOTS: Final = 1 << 18
PLAIN: Final = bytes(32)

_DOMAIN: Final = b"sigil seal rfc3161 v2"
_SIGNED_DATA: Final = "1.2.840.113549.1.7.2"
_TST_INFO: Final = "1.2.840.113549.1.9.16.1.4"
_CONTENT_TYPE: Final = "1.2.840.113549.1.9.3"
_MESSAGE_DIGEST: Final = "1.2.840.113549.1.9.4"
_SIGNING_CERTIFICATE: Final = "1.2.840.113549.1.9.16.2.12"
_SIGNING_CERTIFICATE_V2: Final = "1.2.840.113549.1.9.16.2.47"
_SHA256: Final = "2.16.840.1.101.3.4.2.1"
_DIGESTS: Final[dict[str, hashes.HashAlgorithm]] = {
    _SHA256: hashes.SHA256(),
    "2.16.840.1.101.3.4.2.2": hashes.SHA384(),
    "2.16.840.1.101.3.4.2.3": hashes.SHA512(),
}
_RSA: Final = "1.2.840.113549.1.1.1"
_RSA_WITH: Final[dict[str, hashes.HashAlgorithm]] = {
    "1.2.840.113549.1.1.11": hashes.SHA256(),
    "1.2.840.113549.1.1.12": hashes.SHA384(),
    "1.2.840.113549.1.1.13": hashes.SHA512(),
}
_ECDSA_WITH: Final[dict[str, hashes.HashAlgorithm]] = {
    "1.2.840.10045.4.3.2": hashes.SHA256(),
    "1.2.840.10045.4.3.3": hashes.SHA384(),
    "1.2.840.10045.4.3.4": hashes.SHA512(),
}
_WEAK_HASH: Final = "The time stamp uses a hash other than SHA-256, 384 and 512; ask another authority."
_NO_STAMP: Final = "What the authority signed is not a time stamp; give its answer to the query."
_ED25519: Final = "1.3.101.112"
# The number of points n of the curves that authorities use (SEC 2, NIST SP 800-186).
_ORDERS: Final = {
    "secp256r1": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    "secp384r1": int("F" * 48 + "C7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973", 16),
    "secp521r1": int(
        "1" + "F" * 64 + "FA51868783BF2F966B7FCC0148F709A5D03BB5C9B8899C47AEBB6FB71E91386409", 16
    ),
}
_TIME: Final = re.compile(rb"([0-9]{14})(?:\.([0-9]{0,5}[1-9]))?Z")
# What the libraries below answer to bytes that are neither a certificate, nor a key, nor a signature.
_MALFORMED: Final = (
    *(IndexError, KeyError, TypeError, ValueError, UnsupportedAlgorithm),
    *(x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)
# Tags of the optional parts, [0] and [1].
_FIRST: Final = 0xA0
_SECOND: Final = 0xA1


@dataclass(frozen=True)
class Root:
    """The certificate at the top of a chain, which the checker named: its subject and fingerprint."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Seal:
    """A time stamp that fits a statement and is signed by the certificate that it names.

    `response` is the authority's whole answer. `time` is the moment that it attests, `serial` its number
    at that authority, `authority` the subject of the signing certificate. Whether that authority deserves
    trust is what `check` finds out.
    """

    response: bytes = field(repr=False)
    info: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    time: datetime
    serial: int
    authority: str

    @property
    def sigma(self) -> bytes:
        """σ: 32 bytes that nobody could know before the authority signed."""
        parts = (_DOMAIN, self.info, self.signature)
        return hashlib.sha256(b"".join(map(length_prefixed, parts))).digest()

    def check(self, roots: Sequence[x509.Certificate]) -> Root:
        """The first of `roots` that the signing certificate's chain leads to, valid at the stamp's time.

        Every certificate of the chain, the root included, must allow time stamps or any use.
        """
        from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response

        if not roots:
            raise SealError("No root certificate was given; name the one of the authority that you trust.")
        imprint = _imprint(der.read(self.info).parts())
        # The library asks for the purpose of the signing certificate alone. An issuer whose certificates are
        # for e-mail or servers could make itself an authority, so no chain is built over such a one.
        response = _with_certificates(self.response, _allows_stamps)
        for root in filter(_allows_stamps, roots):
            verifier = VerifierBuilder(roots=[root]).build()
            try:
                verifier.verify(decode_timestamp_response(response), imprint)
            except (VerificationError, ValueError):
                continue
            return Root(root.subject.rfc4514_string(), hashlib.sha256(root.public_bytes(_DER)).hexdigest())
        raise SealError(
            f"The time stamp is signed by {_shown(self.authority)}, which no given root certificate vouched "
            f"for on {self.time:%Y-%m-%d}; give the root of the authority that you trust, in PEM form."
        )


_DER: Final = serialization.Encoding.DER


def read(response: bytes, digest: bytes) -> Seal:
    """Read an authority's answer (TimeStampResp) to a request for the SHA-256 `digest` of a statement.

    Raises `SealError` unless it is granted, in strict DER, has one signer whose certificate it holds, names
    this certificate in what is signed, is signed by it over this very digest, and the certificate is for time
    stamps only. Trust is not a matter of this function: see `Seal.check`.
    """
    if len(response) > MAX_TOKEN:
        raise SealError(f"The time stamp is longer than {MAX_TOKEN} bytes, more than any authority sends.")
    try:
        return _read(response, digest)
    except _MALFORMED as error:
        detail = f": {error}" if isinstance(error, der.DerError) else ""
        raise SealError(
            f"This is not an authority's answer (TimeStampResp, .tsr) in its one correct form{detail}; "
            "give the file exactly as the authority sent it."
        ) from None


def read_roots(path: Path) -> list[x509.Certificate]:
    """The certificates in a PEM file of at most 256 KB."""
    try:
        if not path.is_file() and path.exists():  # a pipe would be waited for
            raise SealError(f"{path} is not a file; give the root of the authority you trust, in PEM form.")
        with path.open("rb") as file:
            content = file.read(MAX_ROOTS + 1)
    except OSError as error:
        raise SealError(
            f"The root certificate {path} cannot be read ({error.strerror}); check the path."
        ) from None
    try:
        certificates = x509.load_pem_x509_certificates(content) if len(content) <= MAX_ROOTS else []
    except ValueError:
        certificates = []
    if not certificates:
        raise SealError(f"{path} holds no certificate in PEM form; give the root of the authority you trust.")
    return certificates


def _read(response: bytes, digest: bytes) -> Seal:
    status, *token = der.read(response).inside(der.SEQUENCE)
    if status.inside(der.SEQUENCE)[0].number() != 0:
        raise SealError("The authority did not grant the time stamp; ask again, or ask another one.")
    (content,) = token
    kind, wrapped = content.inside(der.SEQUENCE)
    (signed,) = wrapped.inside(_FIRST)
    if kind.oid() != _SIGNED_DATA:
        raise der.DerError("it holds no signed data")
    _, digests, encapsulated, *optional, signers = signed.inside(der.SEQUENCE)
    kind, wrapped = encapsulated.inside(der.SEQUENCE)
    if kind.oid() != _TST_INFO:
        raise SealError(_NO_STAMP)
    info = wrapped.inside(_FIRST)[0].octets()
    if not der.is_sorted(digests.inside(der.SET)):
        raise der.DerError("its digest algorithms are not sorted")
    infos = signers.inside(der.SET)
    if len(infos) != 1:
        raise SealError(f"The time stamp has {len(infos)} signers instead of one; ask another authority.")
    certificates = _certificates(optional)

    fields = der.read(info).inside(der.SEQUENCE)
    if fields[0].number() != 1:
        raise der.DerError("its version is not 1")
    if _imprint(fields) != digest:
        raise SealError(
            "The time stamp is for another statement than that of this key; ask the authority with the "
            "query of this key (`sigil key stamp --query`)."
        )
    certificate, signature = _signer(infos[0], info, certificates)
    return Seal(
        response=_with_certificates(response),
        info=info,
        signature=signature,
        time=_time(fields[4]),
        serial=fields[3].number(),
        authority=certificate.subject.rfc4514_string(),
    )


def _allows_stamps(certificate: x509.Certificate) -> bool:
    """Whether nothing in a certificate says that it, and what it certifies, is for other uses only."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    except _MALFORMED:
        return False
    return bool({ExtendedKeyUsageOID.TIME_STAMPING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & {*usage})


def _with_certificates(
    response: bytes, wanted: Callable[[x509.Certificate], bool] = lambda certificate: True
) -> bytes:
    """The same response with the certificates that are `wanted`, in DER's order and each of them once.

    OpenSSL's authorities, and many others, send them in the order of their chain, which the library that
    follows the chain refuses. Nothing of it is signed, and nothing of the seal depends on it.
    """
    status, content = der.read(response).parts()
    kind, wrapped = content.parts()
    version, digests, encapsulated, certificates, *rest = wrapped.parts()[0].parts()
    encodings = {value.encoding for value in certificates.parts()}
    kept = sorted(one for one in encodings if wanted(x509.load_der_x509_certificate(one)))
    before = (part.encoding for part in (version, digests, encapsulated))
    after = (part.encoding for part in rest)
    signed = der.write(der.SEQUENCE, *before, der.write(_FIRST, *kept), *after)
    token = der.write(der.SEQUENCE, kind.encoding, der.write(_FIRST, signed))
    return der.write(der.SEQUENCE, status.encoding, token)


def _imprint(fields: list[der.Value]) -> bytes:
    """The SHA-256 that was stamped; any other kind of hash is refused."""
    algorithm, hashed = fields[2].inside(der.SEQUENCE)
    if algorithm.inside(der.SEQUENCE)[0].oid() != _SHA256:
        raise SealError("The time stamp is not over a SHA-256 hash; ask with the query of this key.")
    return hashed.octets()


def _certificates(optional: list[der.Value]) -> list[x509.Certificate]:
    if [part.tag for part in optional] not in ([_FIRST], [_FIRST, _SECOND]):
        raise SealError("The time stamp lacks its authority's certificate; ask with the query of this key.")
    encodings = {value.encoding for value in optional[0].parts()}
    certificates = [x509.load_der_x509_certificate(encoding) for encoding in encodings]
    if len({(one.issuer, one.serial_number) for one in certificates}) != len(certificates):
        raise SealError("Two certificates of the time stamp have one name and number; it was tampered with.")
    return certificates


def _signer(
    signer: der.Value, info: bytes, certificates: list[x509.Certificate]
) -> tuple[x509.Certificate, bytes]:
    """The signing certificate, which what is signed names, and the signature in its one form."""
    _, identity, algorithm, attributes, kind, signature, *_ = signer.inside(der.SEQUENCE)
    values = _attributes(attributes)
    if values[_CONTENT_TYPE].oid() != _TST_INFO:
        raise SealError(_NO_STAMP)
    digest = _DIGESTS.get(_algorithm(algorithm))
    if digest is None:
        raise SealError(_WEAK_HASH)
    if values[_MESSAGE_DIGEST].octets() != hashlib.new(digest.name, info).digest():
        raise SealError("The time stamp's content is not what was signed; it was tampered with.")
    certificate = _named(values, certificates)
    if identity.encoding != der.write(
        der.SEQUENCE, certificate.issuer.public_bytes(), der.write_integer(certificate.serial_number)
    ):
        raise SealError("The signer of the time stamp is not the certificate that was signed for.")
    _check_purpose(certificate)
    # The signature is over the attributes as a SET, whatever tag they bear in their place.
    message = der.write(der.SET, attributes.content)
    form = _verify(certificate, _algorithm(kind), digest, signature.octets(), message)
    if form is None:
        raise SealError("The time stamp's signature does not fit its content; it was tampered with.")
    return certificate, form


def _attributes(value: der.Value) -> dict[str, der.Value]:
    """The signed attributes, each of them once and with one value."""
    attributes = value.inside(_FIRST)
    if not der.is_sorted(attributes):
        raise der.DerError("its attributes are not sorted")
    by_name = {}
    for attribute in attributes:
        kind, values = attribute.inside(der.SEQUENCE)
        name = kind.oid()
        (only,) = values.inside(der.SET)
        if name in by_name:
            raise der.DerError("it has an attribute twice")
        by_name[name] = only
    if not {_CONTENT_TYPE, _MESSAGE_DIGEST} <= by_name.keys():
        raise der.DerError("it lacks a signed attribute")
    return by_name


def _named(values: dict[str, der.Value], certificates: list[x509.Certificate]) -> x509.Certificate:
    """The certificate whose hash is among the signed attributes (ESSCertID or ESSCertIDv2)."""
    wanted: list[tuple[hashes.HashAlgorithm, bytes]] = []
    if _SIGNING_CERTIFICATE_V2 in values:
        first = values[_SIGNING_CERTIFICATE_V2].inside(der.SEQUENCE)[0].inside(der.SEQUENCE)[0]
        parts = first.inside(der.SEQUENCE)
        digest: hashes.HashAlgorithm | None = hashes.SHA256()  # the default, which DER leaves out
        if parts[0].tag == der.SEQUENCE:
            digest = _DIGESTS.get(_algorithm(parts.pop(0)))
        if digest is None:
            raise SealError(_WEAK_HASH)
        wanted.append((digest, parts[0].octets()))
    if _SIGNING_CERTIFICATE in values:
        first = values[_SIGNING_CERTIFICATE].inside(der.SEQUENCE)[0].inside(der.SEQUENCE)[0]
        wanted.append((hashes.SHA1(), first.inside(der.SEQUENCE)[0].octets()))
    for certificate in certificates:
        if wanted and all(certificate.fingerprint(kind) == known for kind, known in wanted):
            return certificate
    raise SealError("The time stamp does not hold the certificate that was signed for; it was tampered with.")


def _check_purpose(certificate: x509.Certificate) -> None:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        usage = None
    only = [ExtendedKeyUsageOID.TIME_STAMPING]
    if usage is None or not usage.critical or list(usage.value) != only:
        raise SealError("The signing certificate is not for time stamps alone; ask another authority.")


def _verify(
    certificate: x509.Certificate,
    kind: str,
    digest: hashes.HashAlgorithm,
    signature: bytes,
    message: bytes,
) -> bytes | None:
    """The signature in its one form if it is good, else None."""
    public = certificate.public_key()
    try:
        if isinstance(public, rsa.RSAPublicKey) and (kind == _RSA or kind in _RSA_WITH):
            public.verify(signature, message, padding.PKCS1v15(), _RSA_WITH.get(kind, digest))
            return int.from_bytes(signature, "big").to_bytes((public.key_size + 7) // 8, "big")
        if isinstance(public, ec.EllipticCurvePublicKey) and kind in _ECDSA_WITH:
            order = _ORDERS.get(public.curve.name)
            r, s = utils.decode_dss_signature(signature)
            if order is None or utils.encode_dss_signature(r, s) != signature:
                return None
            public.verify(signature, message, ec.ECDSA(_ECDSA_WITH[kind]))
            size = (order.bit_length() + 7) // 8
            return r.to_bytes(size, "big") + min(s, order - s).to_bytes(size, "big")
        if isinstance(public, ed25519.Ed25519PublicKey) and kind == _ED25519:
            public.verify(signature, message)
            return signature
    except InvalidSignature:
        return None
    raise SealError("The time stamp is signed in a way that Sigil does not know; ask another authority.")


def _algorithm(value: der.Value) -> str:
    return value.inside(der.SEQUENCE)[0].oid()


def _time(value: der.Value) -> datetime:
    match = _TIME.fullmatch(value.octets(der.TIME))
    if match is None:
        raise der.DerError("its time is not written in its one form")
    moment = datetime.strptime(match[1].decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return moment.replace(microsecond=int((match[2] or b"0").ljust(6, b"0")))


def _shown(name: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in name[:200])
