"""A private certificate authority for one federation: made on first use, one bundle a client.

======================  ==================================================================
file                    content
======================  ==================================================================
ca.pem, ca.key          the authority; its key signs new clients and never leaves the owner
server.pem, server.key  the owner's server
clients/0000/           what client 0 gets: ca.pem, client.pem, client.key
======================  ==================================================================

Keys are files of mode 0600. A certificate's fingerprint is the SHA-256 of its DER form, in hexadecimal; the
owner's list of fingerprints decides who takes part, the authority only keeps strangers off the line. A
client's certificate cannot pass for the server: it lacks the server's name and purpose.
"""

from __future__ import annotations

import errno
import os
import ssl
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sigil import files
from sigil.errors import NetworkError

SERVER_NAME: Final = "sigil-server"
"""A name that every server certificate carries, so that clients need not know where the server runs."""

# Clocks of other machines may be a little behind.
_SINCE, _LIFETIME = timedelta(hours=1), timedelta(days=730)
_MAX_FILE_BYTES: Final = 65_536
_CLIENTS: Final = "clients"


@dataclass(frozen=True)
class _Credentials:
    """One side of mutual TLS, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    _name: ClassVar[str]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :func:`make` wrote in `folder`, or in a client's part of it."""
        return cls(*_load(folder, cls._name))

    @property
    def fingerprint(self) -> str:
        """By which the other side knows this one."""
        return fingerprint(self.certificate)


class ServerCredentials(_Credentials):
    """The owner's side of mutual TLS, as PEM."""

    _name = "server"


class ClientCredentials(_Credentials):
    """A client's side of mutual TLS, as PEM."""

    _name = "client"


def make(folder: Path, *, clients: int, hosts: Sequence[str] = ()) -> dict[int, str]:
    """Make whatever is missing in `folder` for this many clients; returns the clients' fingerprints.

    What is there is kept, so that calling it again only adds clients. `hosts` are names and addresses of
    the server beside localhost and 127.0.0.1, for tools that check them.
    """
    _make_folder(folder)
    if not (folder / "ca.pem").exists():
        _make_authority(folder)
    if not (folder / "server.pem").exists():
        _issue(
            folder, folder / "server", name=SERVER_NAME, hosts=(SERVER_NAME, "localhost", "127.0.0.1", *hosts)
        )
    for index in range(clients):
        bundle = bundle_folder(folder, index)
        if not (bundle / "client.pem").exists():
            _make_folder(bundle)
            write(bundle / "ca.pem", (folder / "ca.pem").read_bytes(), secret=False)
            _issue(folder, bundle / "client", name=f"sigil client {index}", hosts=None)
    return {
        index: ClientCredentials.load(bundle_folder(folder, index)).fingerprint for index in range(clients)
    }


def bundle_folder(folder: Path, client: int) -> Path:
    """Where the bundle of a client lies."""
    return folder / _CLIENTS / f"{client:04d}"


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a PEM certificate's DER form, in hexadecimal."""
    try:
        return sha256(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))).hexdigest()
    except ValueError:
        raise NetworkError("This is not a certificate in PEM form.") from None


def _make_authority(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = named("sigil federation")
    certificate = (
        unsigned(name, name, key.public_key(), since=_SINCE, lasts=_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_pair(folder / "ca", key, certificate)


def _issue(folder: Path, stem: Path, *, name: str, hosts: Iterable[str] | None) -> None:
    """Sign a certificate for a server under these hosts, or for a client if there are none."""
    signer = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if hosts is None else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        unsigned(named(name), authority.subject, key.public_key(), since=_SINCE, lasts=_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
    )
    if hosts is not None:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)]), critical=False
        )
    _write_pair(stem, key, builder.sign(signer, hashes.SHA256()))


def unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    *,
    since: timedelta,
    lasts: timedelta,
) -> x509.CertificateBuilder:
    """A certificate to be signed, valid from `since` before now for as long as it `lasts` from now."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - since)
        .not_valid_after(now + lasts)
    )


def usage(*, signs: bool) -> x509.KeyUsage:
    """What a key is for: signing certificates, or anything else that is signed."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def named(text: str) -> x509.Name:
    """The name of a certificate's holder."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(stem: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write(stem.with_suffix(".key"), secret, secret=True)
    # The certificate comes last: where it is, its key is.
    write(stem.with_suffix(".pem"), certificate.public_bytes(Encoding.PEM), secret=False)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise NetworkError(
            f"The folder {folder} cannot be made: {error.strerror}; choose another place."
        ) from None


def write(path: Path, content: bytes | str, *, secret: bool) -> None:
    """Write a file, in the place of one that is there; what is secret is for this user alone."""
    files.write(path, content, replace=True, mode=0o600 if secret else 0o644, raises=NetworkError)


def _load(folder: Path, name: str) -> tuple[bytes, bytes, bytes]:
    names = ("ca.pem", f"{name}.pem", f"{name}.key")
    authority, certificate, key = (read_plain(folder / file) for file in names)
    try:
        ends = min(
            x509.load_pem_x509_certificate(content).not_valid_after_utc
            for content in (authority, certificate)
        )
        load_pem_private_key(key, None)
    except (ValueError, TypeError):
        raise NetworkError(
            f"The certificates in {folder} are damaged; take them from a backup or have new ones made."
        ) from None
    if ends < datetime.now(UTC):
        made = "delete the folder and have new ones made"
        new = made if name == "server" else "ask the owner for a new folder"
        raise NetworkError(f"A certificate in {folder} expired on {ends:%Y-%m-%d}; {new}.")
    return authority, certificate, key


def read_plain(path: Path) -> bytes:
    """The content of a short file that may come from a stranger: a regular one, and never through a link."""
    # A pipe would keep the reader waiting for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise NetworkError(
            f"{path} cannot be read: {why}; give the folder that `sigil serve` made."
        ) from None
    if len(content) > _MAX_FILE_BYTES:
        raise NetworkError(f"{path} is too long for its kind; give the folder that `sigil serve` made.")
    return content
