"""One process for one client, no matter who comes second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sigil.errors import NetworkError
from sigil.transport.flower.bundle import only_process

FIRST = """
import sys, time
from pathlib import Path
from sigil.transport.flower.bundle import TakenOver, only_process
try:
    with only_process(Path(sys.argv[1]), take_over=False):
        print("in", flush=True)
        time.sleep(600)
except TakenOver as told:
    print(told, flush=True)
"""


IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@pytest.fixture(params=["", IGNORING], ids=["in front", "put behind a script, which ignores Ctrl-C"])
def first(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", request.param + FIRST, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_unless_it_takes_over_and_the_first_is_told(
    tmp_path: Path, first: subprocess.Popen[str]
) -> None:
    second = only_process(tmp_path, take_over=False)
    with pytest.raises(NetworkError, match=r"Another process is running .* --take-over"):
        second.__enter__()
    with only_process(tmp_path, take_over=True):
        assert first.wait(300) == 0
        assert first.stdout is not None
        assert "Another process took over the client" in first.stdout.read()
    with only_process(tmp_path, take_over=False):
        pass


@pytest.mark.parametrize("first", [""], ids=["in front"], indirect=True)
def test_a_process_that_was_killed_leaves_nothing_behind(
    tmp_path: Path, first: subprocess.Popen[str]
) -> None:
    first.kill()
    first.wait()
    with only_process(tmp_path, take_over=False):
        pass


def test_an_interruption_by_a_person_stays_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), only_process(tmp_path, take_over=False):
        raise KeyboardInterrupt
