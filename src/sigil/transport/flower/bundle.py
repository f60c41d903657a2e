"""A client's bundle: what the owner puts into the folder that it hands over, and what a client takes from it.

=========================  =========================================================================
file                       content
=========================  =========================================================================
ca.pem, client.*           the client's side of mutual TLS, as `sigil.transport.certificates` makes it
join.json                  which client this is, of how many, and where its owner listens
node.key, node.pub         the client's key once more, in the form that Flower reads
=========================  =========================================================================

The owner is an adversary here: any name in the folder may be a link to a file of the client's, a pipe or a
device. So a client opens four files, each once and never through a link, reads no more of them than they can
hold, and works with copies in a folder of its own, where its logs are too. In the owner's folder it makes
nothing but a lock (:mod:`sigil.transport.flower.only_process`).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from sigil import files
from sigil.errors import NetworkError
from sigil.transport.certificates import ClientCredentials, read_plain

JOIN_FILE = "join.json"
# Names and addresses of machines; the address is shown to people and handed to other programs.
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")


@dataclass(frozen=True)
class Invitation:
    """What a client must know to join; `clients` is none in folders of early releases."""

    client: int
    clients: int | None
    server: str

    def write(self, bundle: Path) -> None:
        """Put it into a bundle."""
        content = {"client": self.client, "clients": self.clients, "server": self.server}
        _write(bundle / JOIN_FILE, json.dumps(content, indent=1) + "\n", mode=0o644)

    @classmethod
    def read(cls, bundle: Path) -> Invitation:
        """What :meth:`write` wrote, or one sentence."""
        try:
            found: dict[str, Any] = json.loads(read_plain(bundle / JOIN_FILE))
            clients = found.get("clients")
            server = str(found["server"])
            if not _ADDRESS.fullmatch(server):
                raise ValueError("no address")
            return cls(int(found["client"]), None if clients is None else int(clients), server)
        except (NetworkError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise NetworkError(
                f"{bundle} is not a client's folder; give the one that the owner's `sigil serve` made."
            ) from None


@contextmanager
def unpacked(bundle: Path) -> Iterator[Path]:
    """A folder of this process alone, with copies of what is needed of a bundle; gone in the end."""
    credentials = ClientCredentials.load(bundle)  # with its own words for what is missing, damaged or expired
    try:
        own = tempfile.TemporaryDirectory(prefix="sigil-join-", ignore_cleanup_errors=True)
    except OSError as error:
        raise NetworkError(
            f"{tempfile.gettempdir()} cannot be written: {error.strerror}; make room, or set TMPDIR to "
            "another folder."
        ) from None
    with own as name:
        folder = Path(name)
        _write(folder / "ca.pem", credentials.authority)
        _write(folder / "client.pem", credentials.certificate)
        _write(folder / "client.key", credentials.key)
        write_node_key(folder)
        yield folder


def write_node_key(bundle: Path) -> None:
    """Write the client's key in the form that Flower reads, and its public key."""
    key = load_pem_private_key((bundle / "client.key").read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise NetworkError("The client's key is of another kind than agreed; ask the owner for a new folder.")
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    if not (bundle / "node.key").exists():
        _write(bundle / "node.key", secret)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(bundle / "node.pub", public + b"\n", mode=0o644)


def public_key(bundle: Path) -> bytes:
    """The client's public key, as Flower names its node (PEM)."""
    certificate = x509.load_pem_x509_certificate((bundle / "client.pem").read_bytes())
    return certificate.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _write(path: Path, content: bytes | str, *, mode: int = 0o600) -> None:
    files.write(path, content, replace=True, mode=mode, raises=NetworkError)
