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
nothing but a lock (:func:`only_process`), which is the system's and goes with its process, so that a client
that was killed can be started again at once; copies of the folder on other machines do not see it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

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
from sigil.transport.certificates import ClientCredentials, read_plain, write

JOIN_FILE = "join.json"
# Names and addresses of machines; the address is shown to people and handed to other programs.
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")


@dataclass(frozen=True)
class Invitation:
    """What a client must know to join: which one it is, of how many, and where."""

    client: int
    clients: int
    server: str

    def write(self, bundle: Path) -> None:
        """Put it into a bundle."""
        write(bundle / JOIN_FILE, json.dumps(asdict(self), indent=1) + "\n", secret=False)

    @classmethod
    def read(cls, bundle: Path) -> Invitation:
        """What :meth:`write` wrote, or one sentence."""
        try:
            content: dict[str, Any] = json.loads(read_plain(bundle / JOIN_FILE))
            server = str(content["server"])
            if not _ADDRESS.fullmatch(server):
                raise ValueError("no address")
            return cls(int(content["client"]), int(content["clients"]), server)
        except (NetworkError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise NetworkError(
                f"{bundle} is not a client's folder; give the one that the owner's `sigil serve` made."
            ) from None


@contextmanager
def unpacked(bundle: Path) -> Iterator[Path]:
    """A folder of this process alone, with copies of what is needed of a bundle; gone in the end."""
    credentials = ClientCredentials.load(bundle)  # with its own words for what is missing, damaged or expired
    try:
        temporary = tempfile.TemporaryDirectory(prefix="sigil-join-", ignore_cleanup_errors=True)
    except OSError as error:
        raise NetworkError(
            f"{tempfile.gettempdir()} cannot be written: {error.strerror}; make room, or set TMPDIR to "
            "another folder."
        ) from None
    with temporary as name:
        folder = Path(name)
        write(folder / "ca.pem", credentials.authority, secret=True)
        write(folder / "client.pem", credentials.certificate, secret=True)
        write(folder / "client.key", credentials.key, secret=True)
        yield folder


def write_node_key(bundle: Path) -> None:
    """Write the client's key in the form that Flower reads, and its public key."""
    key = load_pem_private_key((bundle / "client.key").read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise NetworkError("The client's key is of another kind than agreed; ask the owner for a new folder.")
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    if not (bundle / "node.key").exists():
        write(bundle / "node.key", secret, secret=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write(bundle / "node.pub", public + b"\n", secret=False)


def public_key(bundle: Path) -> bytes:
    """The client's public key, as Flower names its node (PEM)."""
    certificate = x509.load_pem_x509_certificate((bundle / "client.pem").read_bytes())
    return certificate.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


LOCK_FILE = ".joined"
REQUEST_FILE = ".take-over"
POLL_SECONDS = 0.3
PATIENCE_SECONDS = 60.0


class TakenOver(NetworkError):
    """Another process goes on as this client."""


@contextmanager
def only_process(bundle: Path, *, take_over: bool) -> Iterator[None]:
    """Be the only process that acts for the client of this folder.

    If there is one already, that is an error; with `take_over` that one is asked to end, and this one waits
    until it has. Inside, a request from another process interrupts the main thread, and leaves as
    :class:`TakenOver`.
    """
    request = bundle / REQUEST_FILE
    try:
        # The folder came from the owner, and the name might be a link. Nothing is ever written to the file.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        file = os.fdopen(os.open(bundle / LOCK_FILE, flags, 0o600), "rb")
    except OSError as error:
        raise NetworkError(f"{bundle} cannot be written to: {error.strerror}; copy it elsewhere.") from None
    with file:
        _take(file, request, bundle, take_over=take_over)
        with suppress(OSError):
            request.unlink()
        asked, ended = threading.Event(), threading.Event()
        threading.Thread(target=_watch, args=(request, asked, ended), daemon=True).start()
        try:
            with _heard(asked):
                yield
        except KeyboardInterrupt:
            if not asked.is_set():
                raise
            raise TakenOver(
                f"Another process took over the client of {bundle} (--take-over), so this one has ended."
            ) from None
        finally:
            ended.set()


@contextmanager
def _heard(asked: threading.Event) -> Iterator[None]:
    """Let a request interrupt also a process that ignores Ctrl-C, as one does that a script put behind it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return

    def interrupt(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _take(file: IO[bytes], request: Path, bundle: Path, *, take_over: bool) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    asked = False
    while True:
        try:
            files.lock(file, wait=False)
            return
        except OSError:
            if not take_over:
                raise NetworkError(
                    f"Another process is running as the client of {bundle}; end it, or add --take-over to "
                    "go on in its place."
                ) from None
        if not asked:
            files.write(request, b"", replace=True, raises=NetworkError)
            asked = True
        if time.monotonic() > deadline:
            raise NetworkError(
                f"The process that runs as the client of {bundle} did not end when it was asked to; end it "
                "and try again."
            )
        time.sleep(POLL_SECONDS)


def _watch(request: Path, asked: threading.Event, ended: threading.Event) -> None:
    while not ended.wait(POLL_SECONDS):
        if request.exists():
            asked.set()
            os.kill(os.getpid(), signal.SIGINT)
            return
