"""Asking a time-stamping authority (RFC 3161): the query for a statement, and the way to send it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from sigil.errors import NetworkError, SealError
from sigil.keys.seal import MAX_TOKEN

MAX_QUERY: Final = 1_024
TIMEOUT: Final = 30.0

_QUERY_TYPE: Final = "application/timestamp-query"


def make_query(statement: str) -> bytes:
    """A query (TimeStampReq) for a stamp over the SHA-256 of a statement, with the certificate asked for.

    It holds a random number (nonce), so that an authority's answer cannot be one from a store.
    """
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    builder = TimestampRequestBuilder().data(statement.encode()).hash_algorithm(HashAlgorithm.SHA256)
    query: bytes = builder.cert_request(cert_request=True).nonce(nonce=True).build().as_bytes()
    return query


def ask(url: str, query: bytes, *, timeout: float = TIMEOUT) -> bytes:
    """Send a query to an authority over HTTP and return its answer, of at most 32 KB.

    The answer is signed, so that plain http will do. Redirections are not followed.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        raise SealError(f"The authority's address {url!r} is not a valid address.") from None
    if scheme not in ("http", "https"):
        raise SealError("The authority must be an address that begins with http:// or https://.")
    # Imported here, as only this command speaks HTTP.
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    class Stay(urllib.request.HTTPRedirectHandler):
        """Treats a redirection like any other answer that is not the stamp."""

        def redirect_request(self, *_: object, **__: object) -> None:
            return None

    headers = {"Content-Type": _QUERY_TYPE, "Accept": "application/timestamp-reply"}
    try:
        request = urllib.request.Request(url, data=query, headers=headers, method="POST")
        with urllib.request.build_opener(Stay).open(request, timeout=timeout) as response:
            if response.status != HTTPStatus.OK:
                raise _unexpected(response.status)
            answer: bytes = response.read(MAX_TOKEN + 1)
    except urllib.error.HTTPError as error:
        raise _unexpected(error.code) from None
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        name = type(cause if isinstance(cause, Exception) else error).__name__
        raise NetworkError(
            f"The authority cannot be asked ({name}); check its address and the network, or "
            "carry the query to another machine with --query."
        ) from None
    if len(answer) > MAX_TOKEN:
        raise NetworkError(f"The authority's answer is longer than {MAX_TOKEN} bytes; ask another.")
    return answer


def _unexpected(status: int) -> NetworkError:
    return NetworkError(f"The authority answered with HTTP status {status}; check its address.")
