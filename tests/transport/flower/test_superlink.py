"""The owner's SuperLink: whom it serves, and what is said when its run is ended."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sigil.errors import NetworkError
from sigil.transport import certificates
from sigil.transport.flower import processes
from sigil.transport.flower.superlink import SuperLink

FLOWER = ("HOME", "TELEMETRY_ENABLED", "DISABLE_UPDATE_CHECK", "DISABLE_RUNTIME_DEPENDENCY_INSTALLATION")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FLOWER:
        monkeypatch.setenv(f"FLWR_{name}", "as before")
    certificates.make(tmp_path, clients=0)
    processes.quiet(tmp_path / "flower")
    return tmp_path


def begun(folder: Path) -> SuperLink:
    return SuperLink(folder)


@pytest.mark.usefixtures("identity")
def test_a_run_that_somebody_stops_ends_with_one_sentence(folder: Path) -> None:
    """It ended as a bug in Sigil, or as if its owner had pressed Ctrl-C."""
    app = ServerApp()
    with begun(folder) as link:

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            (found,) = link._flwr(("list",))
            link._flwr(("stop", found["runs"][0]["run-id"]))
            while True:
                list(grid.get_nodes())
                time.sleep(0.1)

        with pytest.raises(NetworkError, match=r"Flower's run was stopped.* the last checkpoint is kept"):
            link.run(app)


def test_what_others_raise_stays_what_it_is() -> None:
    link = object.__new__(SuperLink)
    link._stopped = False
    link._process = type("Alive", (), {"poll": lambda self: None})()
    assert link._over(KeyboardInterrupt()) is None
    assert link._over(ValueError("a bug")) is None
    assert link._over(NetworkError("Nobody came.")) is None
    refused = KeyboardInterrupt()
    refused.__context__ = httpx.ReadError("")
    assert link._over(refused) is not None
    gone = type("RunNotRunningException", (Exception,), {"__module__": "flwr.supercore.retry"})()
    assert link._over(gone) is not None
    link._process = type("Ended", (), {"poll": lambda self: 1})()
    assert link._over(KeyboardInterrupt()) == "The SuperLink ended"


def test_a_superlink_that_does_not_ask_for_the_secret_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = processes._CHILD
    assert program.count("uvicorn.run = run_guarded") == 1
    monkeypatch.setattr(processes, "_CHILD", program.replace("uvicorn.run = run_guarded", "pass"))
    with pytest.raises(NetworkError, match="lets anybody on this machine end the training"):
        begun(folder)
