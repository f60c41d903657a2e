"""Asking a time-stamping authority (RFC 3161): the query for a statement, and the way to send it."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from sigil.errors import NetworkError, SealError
from sigil.seal import MAX_TOKEN

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
    import httpx

    if urlsplit(url).scheme not in ("http", "https"):
        raise SealError("The authority must be an address that begins with http:// or https://.")
    headers = {"Content-Type": _QUERY_TYPE, "Accept": "application/timestamp-reply"}
    answer = b""
    try:
        with httpx.stream("POST", url, content=query, headers=headers, timeout=timeout) as response:
            if response.status_code != httpx.codes.OK:
                raise NetworkError(
                    f"The authority answered with HTTP status {response.status_code}; check its address."
                )
            for chunk in response.iter_bytes(4_096):
                answer += chunk
                if len(answer) > MAX_TOKEN:
                    raise NetworkError(
                        f"The authority's answer is longer than {MAX_TOKEN} bytes; ask another."
                    )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NetworkError(
            f"The authority cannot be asked ({type(error).__name__}); check its address and the network, or "
            "carry the query to another machine with --query."
        ) from None
    return answer
