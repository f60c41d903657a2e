"""Children of ours: quiet, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.processes import TrainingProcesses
from harness.waiting import until
from sigil.errors import NetworkError
from sigil.transport.flower import processes, superlink

PARENT = """
import sys, time
from pathlib import Path
from sigil.transport.flower import processes
processes.entry = lambda command: "signal:pause"
child = processes.start("sleep", [], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            assert alive(child)
        finally:
            parent.send_signal(signal.SIGKILL)
    until(lambda: not alive(child))


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("_name_connection", NetworkError("no room on the disk")),
        ("_wait", KeyboardInterrupt()),
        ("_wait", NetworkError("did not start")),
    ],
    ids=["disk full", "interrupted", "too slow"],
)
def test_a_superlink_that_is_started_half_way_is_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leftovers: Callable[[], list[str]],
    fails: str,
    error: BaseException,
) -> None:
    running: list[str] = []

    def fail(*arguments: object, **options: object) -> None:
        last = time.monotonic() + 300
        while not running and time.monotonic() < last:  # a process that was just started has no environment
            running.extend(leftovers())
        raise error

    monkeypatch.setattr(processes, "entry", lambda command: "signal:pause")
    monkeypatch.setattr(superlink.SuperLink, "_wait", lambda self: None)
    monkeypatch.setattr(superlink.SuperLink, "_check_secret", lambda self, ca: None)
    monkeypatch.setattr(superlink.SuperLink, fails, fail)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(b"")
    with pytest.raises(type(error)):
        superlink.SuperLink(tmp_path)
    assert len(running) == 1
    assert leftovers() == []


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in the place of Flower's commands; it has a function `command`."""

    def put(program: str) -> None:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(processes, "entry", lambda command: "stand_in:command")

    return put


ECHO = """
import sys
def command(line):
    if line[0] == "fails":
        print("something for the log", file=sys.stderr)
        sys.exit(1)
    print('{"said": "%s", "format": "%s"}' % (line[0], line[2]))
    raise SystemExit
"""


def test_several_commands_run_in_one_process_and_each_answers(
    tmp_path: Path, command: Callable[[str], None]
) -> None:
    command(ECHO)
    log = tmp_path / "log"
    answers = processes.flwr(("list",), ("run",), home=tmp_path, log=log, secret="s")
    assert answers == [{"said": "list", "format": "json"}, {"said": "run", "format": "json"}]
    with pytest.raises(NetworkError, match="did not answer"):
        processes.flwr(("list",), ("fails",), home=tmp_path, log=log, secret="s")
    assert "something for the log" in log.read_text()


FAILS = """
import sys
def command():
    print("\\x1b[91mERROR\\x1b[0m: something\\x07 happened")
    sys.exit(3)
"""


def test_a_child_that_ends_by_itself_is_noticed_with_its_last_words(
    tmp_path: Path, command: Callable[[str], None]
) -> None:
    command(FAILS)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(b"")
    with pytest.raises(NetworkError, match=r"log says why, in the end: ERROR: something\\x07"):
        superlink.SuperLink(tmp_path)


# What clients send ends up in the SuperLink's log.
TALKS = """
def command():
    print("ssh-ed25519 AAAAC3Nza owner")
    print("\\x1b[2J\\x1b]0;title\\x07\\x1b[91mred\\x1b[0m\\r\\u202e", flush=True)
"""


def test_a_childs_log_holds_no_control_characters_and_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[str], None]
) -> None:
    command(TALKS)

    def said(log: Path) -> str:
        processes.start("talks", [], log=log, secret="s").wait()
        return log.read_text()

    text = said(tmp_path / "whole.log")
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert "ssh-ed25519 AAAAC3Nza owner\n" in text
    assert "\\x1b[2J\\x1b]0;title\\x07red\\r\\u202e" in text
    monkeypatch.setattr(processes, "LOG_BYTES", 10)
    text = said(tmp_path / "short.log")
    assert "ssh-ed25519" not in text
    assert "title" in text


def test_a_training_whose_client_fails_is_not_waited_for(tmp_path: Path) -> None:
    with TrainingProcesses(tmp_path / "run", clients=1) as training:
        training.join(0)
        with pytest.raises(NetworkError, match="is not a client's folder"):
            training.until(lambda: False)


def test_a_command_that_is_not_installed_is_one_sentence() -> None:
    with pytest.raises(NetworkError, match="flower-nothing is not installed"):
        processes.entry("flower-nothing")


def test_flower_is_kept_to_its_folder_and_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLWR_HOME", "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "before")
    processes.quiet(tmp_path / "new" / "flower")
    assert Path(os.environ["FLWR_HOME"]) == tmp_path / "new" / "flower"
    assert (tmp_path / "new" / "flower").is_dir()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"


def test_a_wanted_port_that_is_taken_is_an_error() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            processes.free_port(wanted=taken.getsockname()[1])
        assert processes.free_port() != taken.getsockname()[1]
