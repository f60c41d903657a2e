"""A real time-stamping authority, asked directly and over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.openssl_authority import OpenSslAuthority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OpenSslAuthority:
    return OpenSslAuthority(tmp_path_factory.mktemp("tsa") / "ec")


@pytest.fixture(scope="session")
def make_authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., OpenSslAuthority]:
    return lambda **options: OpenSslAuthority(tmp_path_factory.mktemp("tsa") / "own", **options)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[bytes], tuple[int, bytes]]], str]]:
    """Serve a function from a query to (status, answer) over HTTP; gives the address."""
    servers = []

    def start(answer: Callable[[bytes], tuple[int, bytes]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = self.rfile.read(int(self.headers["Content-Length"]))
                asked = self.headers["Content-Type"] == "application/timestamp-query"
                status, content = answer(query) if asked else (400, b"")
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/tsa"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
