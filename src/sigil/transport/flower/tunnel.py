"""A client's way to the owner's HTTPS front: a local port whose connections continue with its certificate.

The front lets nobody in without a certificate, and a SuperNode cannot show one. So `sigil join` listens on
the loopback address with a certificate made for that, which only its own SuperNode is told to trust, and
passes every connection on to the front over mutual TLS. It also sees at once whether the owner is there, and
says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import tempfile
import time
from pathlib import Path

from sigil.errors import NetworkError, reason
from sigil.serving import ServerThread
from sigil.transport import certificates

log = logging.getLogger("sigil.transport")

CONNECT_SECONDS = 10.0
BUFFER_BYTES = 64 * 1024
LEAVE_SECONDS = 5.0
AWAY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# A server that is away is mentioned at once and then this often.
REMIND_SECONDS = 30.0


class Tunnel(ServerThread):
    """A loopback port that leads to the front at `server` ("host:port"), with the bundle's certificate."""

    def __init__(self, bundle: Path, server: str) -> None:
        super().__init__("tunnel")
        self._host, _, port = server.rpartition(":")
        self._host = self._host.strip("[]")
        self._port = int(port)
        self._server = server
        self._away: float | None = None  # since when the owner has not answered
        self._told = 0.0
        self._out = _trusting(bundle)
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="sigil-tunnel-")
        except OSError as error:
            raise NetworkError(
                f"{tempfile.gettempdir()} cannot be written: {error.strerror}; make room, or set TMPDIR to "
                "another folder."
            ) from None
        local = Path(self._folder.name)
        certificates.make(local, clients=0)
        self.ca = local / "ca.pem"
        self._inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inside.load_cert_chain(local / "server.pem", local / "server.key")
        # Taken here, so that there is an address, or an error, before there is a thread.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def close(self) -> None:
        """Close all connections."""
        super().close()
        self._folder.cleanup()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, ssl=self._inside)
        await self._stopping.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connected(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far_out: asyncio.StreamWriter | None = None
        try:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    far_in, far_out = await asyncio.open_connection(
                        self._host, self._port, ssl=self._out, server_hostname=certificates.SERVER_NAME
                    )
            except (OSError, TimeoutError) as error:
                self._tell_away(error)
                await _say_away(near_in, near_out)
                return
            self._tell_back()
            await asyncio.gather(_pump(near_in, far_out), _pump(far_in, near_out))
        except (OSError, asyncio.CancelledError):
            return  # either end may go at any time; Flower asks again
        finally:
            near_out.close()
            if far_out is not None:
                far_out.close()

    def _tell_away(self, error: Exception) -> None:
        now = time.monotonic()
        if self._away is None:
            self._away = now
        if now - self._told < REMIND_SECONDS:
            return
        self._told = now
        if isinstance(error, ssl.SSLError):
            log.warning(
                "%s answers, but not as the owner of this folder (%s); ask the owner for a new folder, or "
                "look at --server. Trying again.",
                self._server,
                reason(error),
            )
        else:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else reason(error)
            if isinstance(error, TimeoutError):
                why = "no answer in time"
            log.warning(
                "Waiting for the owner at %s (%s). Trying again until it is there.", self._server, why
            )

    def _tell_back(self) -> None:
        if self._away is not None:
            log.warning("The owner is there, after %.0f seconds.", time.monotonic() - self._away)
            self._away, self._told = None, 0.0


async def _say_away(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
    """Answer a request in the SuperNode's own terms: after a broken connection it might give up."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS):
            if await near_in.read(BUFFER_BYTES):
                near_out.write(AWAY)
                await near_out.drain()
            # What is left of the request must be read: bytes that nobody reads break the connection.
            while await near_in.read(BUFFER_BYTES):
                pass


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(BUFFER_BYTES):
        sink.write(data)
        await sink.drain()
    sink.close()


def _trusting(bundle: Path) -> ssl.SSLContext:
    """Trust the bundle's authority and nobody else, and show the bundle's certificate."""
    certificates.ClientCredentials.load(bundle)  # with its own words for what is missing, damaged or expired
    try:
        context = ssl.create_default_context(cafile=bundle / "ca.pem")
        context.load_cert_chain(bundle / "client.pem", bundle / "client.key")
    except (OSError, ssl.SSLError) as error:
        raise NetworkError(f"The certificates in {bundle} cannot be used: {reason(error)}.") from None
    return context
