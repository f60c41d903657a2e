"""A server on a thread: it ends when it is told to, however often, and also if it never began."""

from __future__ import annotations

import threading

import pytest

from sigil.serving import ServerThread


class Recorded(ServerThread):
    """Serves nothing, and says how it went."""

    def __init__(self) -> None:
        super().__init__("a server for a test")
        self.moments: list[str] = []

    async def _serve(self) -> None:
        self.moments.append("began")
        await self._stopping.wait()
        self.moments.append("ended")


def test_it_serves_from_its_start_until_it_is_closed() -> None:
    server = Recorded()
    server.close()
    with server.start() as same:
        assert same is server
    assert server.moments == ["began", "ended"]
    server.close()
    assert "a server for a test" not in {thread.name for thread in threading.enumerate()}


def test_one_that_ends_by_itself_can_be_closed() -> None:
    server = Recorded()
    server._stopping.set()
    server.start()._thread.join()
    server.close()
    assert server.moments == ["began", "ended"]


def test_what_is_served_must_be_said() -> None:
    with pytest.raises(NotImplementedError):
        ServerThread("nothing")._serve().send(None)
