"""The `sigil` command itself: help, version, and the exit status of every kind of ending."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated

import pytest
import typer

import sigil
from sigil.cli import main as module
from sigil.cli.main import main
from sigil.errors import KeyFileError


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a command that ends in a given way through `main`."""

    def run(outcome: BaseException | None, *arguments: str) -> int:
        app = typer.Typer()

        @app.command()
        def only(named: Annotated[list[str] | None, typer.Argument()] = None, file: str = "") -> None:
            if outcome is not None:
                raise outcome

        monkeypatch.setattr(module, "app", app)
        return main([*arguments])

    return run


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.split() == alone.split()
    for word in ("sigil key new", "sigil verify", "sigil evidence check", "Exit status"):
        assert word in alone


@pytest.mark.parametrize("command", ["verify", "evidence check", "key new"])
def test_every_command_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"sigil {command} ") >= 2
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_help_says_what_an_argument_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--help"]) == 0
    assert "exported program (.pt2)" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_place_that_the_system_refuses_is_no_bug(
    ending: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (errno.ENOSPC, errno.EACCES, errno.ENAMETOOLONG):
        assert ending(OSError(number, os.strerror(number), "/a/place")) == 2
    assert ending(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == 2  # a full disk names no file
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EBADF])
def test_a_file_that_the_call_does_not_name_is_a_bug(
    number: int, ending: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    lost = OSError(number, os.strerror(number), "runs/a/metrics.jsonl")
    assert ending(lost) == module.BUG
    assert ending(lost, "runs/a") == module.BUG  # below a place that is named: made by us
    assert "This is a bug in Sigil" in capsys.readouterr().err
    assert ending(lost, "runs/a/metrics.jsonl") == 2
    assert ending(lost, "--file=runs/a/metrics.jsonl") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sigil {sigil.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["--nonsense"], ["verify"], ["verify", "x", "--key", "k", "--alpha", "many"]],
)
def test_bad_use_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Usage: sigil" in printed.err
    assert "Traceback" not in printed.err


def test_an_error_of_sigil_is_one_sentence(
    ending: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(KeyFileError("The key file \x1b[2Jx is damaged; restore it.")) == 2
    assert capsys.readouterr().err == "sigil: The key file \\x1b[2Jx is damaged; restore it.\n"


def test_endings_that_no_verdict_can_be_confused_with(
    ending: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(None) == 0
    assert ending(typer.Exit(1)) == 1
    assert ending(KeyboardInterrupt()) == 130
    assert ending(typer.Abort()) == 130
    capsys.readouterr()
    assert ending(RuntimeError("a bug")) == 70
    assert "RuntimeError: a bug" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_not_a_verdict() -> None:
    """`python -m sigil --help | true`: no traceback, and not the status that means "not owned"."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "sigil", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 141
    assert done.stderr == ""


def test_help_does_not_wait_for_heavy_libraries() -> None:
    code = (
        "import sys; from sigil.cli.main import main; main(['verify', '--help']);"
        "print(sorted({'torch', 'numpy', 'scipy', 'jinja2', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    # Typer itself may bring pydantic along.
    assert loaded in ("[]", "['pydantic']")
