"""Which address of this machine to listen on: the one that was asked for, never more; and its ports."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from sigil.errors import NetworkError, reason
from sigil.serving import Closing


@dataclass(frozen=True)
class Ports(Closing):
    """The two ports that clients reach, as sockets that listen: nobody else can have them meanwhile.

    `front` is the HTTPS front's own. `split` only keeps the split service's port until the first round, when
    the service listens there itself.
    """

    front: socket.socket
    split: socket.socket

    @classmethod
    def take(cls, address: str, port: int) -> Ports:
        """Take `port` and the next one of an address of this machine, or none and one sentence."""
        front = listen_on(address, port)
        try:
            return cls(front, listen_on(address, port + 1))
        except NetworkError:
            front.close()
            raise

    def close(self) -> None:
        """Give both back."""
        self.front.close()
        self.split.close()


def listen_on(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A socket that listens there, or one sentence that names the option which chose the port."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise NetworkError(
            f"Port {port} of {host} cannot be opened ({reason(error)}); free it or choose another {option}."
        ) from None


def split_address(front: str) -> str:
    """Where the split service is if the HTTPS front is there: one port further."""
    host, _, port = front.rpartition(":")
    if not host or not port.isdecimal():
        raise NetworkError(f"{front!r} is not an address of the form host:port.")
    return f"{host}:{int(port) + 1}"


def listening_address(host: str, listen: str | None = None) -> str:
    """The numeric address to listen on for clients that are told to connect to `host`.

    That is `listen` if it is given ("0.0.0.0" or "::" for all), else the address of this machine that `host`
    is or means. A name that means another machine, or only this one to itself, is an error.
    """
    if listen is not None:
        return _own(listen, option="--listen")
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _resolved(host)
    if address.is_unspecified:
        raise NetworkError(
            f"Clients cannot connect to {host}; give the name or address of this machine as --host, and "
            f"--listen {host} to listen on all of its addresses."
        )
    return _own(host, option="--host")


def _resolved(host: str) -> str:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NetworkError(
            f"The name {host} cannot be looked up here ({reason(error)}); add --listen ADDRESS with the "
            "address of this machine that clients reach under it."
        ) from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    outside = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    for address in outside:
        if _can_bind(address):
            return address
    where = ", ".join(outside or addresses)
    trouble = "is not an address of this machine" if outside else "other machines cannot reach"
    raise NetworkError(
        f"{host} means {where} here, which {trouble}; add --listen ADDRESS with the address to listen on, "
        "0.0.0.0 for all."
    )


def _own(address: str, *, option: str) -> str:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise NetworkError(f"{option} {address} is not an IP address; write 192.0.2.7, say.") from None
    if not _can_bind(address):
        raise NetworkError(
            f"{option} {address} is not an address of this machine; choose one of its own, or add --listen."
        )
    return address


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
