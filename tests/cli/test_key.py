"""`sigil key`: what the commands write, print and refuse."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from sigil.cli.key import app, read_passphrase
from sigil.cli.main import main
from sigil.data.inputs import Inputs
from sigil.errors import ConfigError, KeyFileError, SigilError
from sigil.keys.key import Key

NEW = ["--owner", "ACME", "--shape", "256,8,8"]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(app, list(arguments), **options)


def succeed(*arguments: str, **options: Any) -> str:
    result = run(*arguments, **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(*arguments: str, **options: Any) -> SigilError:
    result = run(*arguments, **options)
    assert isinstance(result.exception, SigilError), result.output
    return result.exception


def seed_of(path: str) -> str:
    seed: str = json.loads(Path(path).read_bytes())["seed"]
    return seed


def test_new_writes_a_key_and_prints_its_statement() -> None:
    output = succeed("new", "owner.key", *NEW, "--bits", "60")
    key = Key.load("owner.key")
    assert (key.owner, key.shape, key.bits) == ("ACME", (256, 8, 8), 60)
    assert stat.S_IMODE(Path("owner.key").stat().st_mode) == 0o600
    assert output.splitlines()[-1] == key.statement()
    assert "not encrypted" in output


def test_what_the_mark_is_read_on_can_be_stated(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (300, 3, 8, 8), dtype=np.uint8)
    np.save("images.npy", images)
    succeed("new", "a.key", *NEW, "--inputs", "images.npy", "--normalisation", "0.5,0.5,0.5/0.25,0.25,0.25")
    stated = Key.load("a.key").fields
    assert stated.inputs_digest == Inputs(images).digest
    assert stated.input_shape == (3, 8, 8)
    assert stated.normalisation == "0.5,0.5,0.5/0.25,0.25,0.25"
    assert "give one of them" in str(
        fail("new", "b.key", *NEW, "--inputs", "images.npy", "--inputs-digest", "00")
    )
    assert "at least 256" in str(fail("new", "b.key", *NEW, "--inputs", str(few(tmp_path))))
    assert "how they are normalised" in str(fail("new", "b.key", *NEW, "--inputs", "images.npy"))
    assert "means, a slash" in str(fail("new", "b.key", *NEW, "--normalisation", "0.5"))
    assert not Path("b.key").exists()


def few(folder: Path) -> Path:
    """Fewer inputs than a reading takes."""
    np.save(folder / "few.npy", np.zeros((10, 3, 8, 8), np.uint8))
    return folder / "few.npy"


@pytest.mark.parametrize(("shape", "bits"), [("256,8,8", 512), ("256,2,2", 128), ("32,2,2", 64)])
def test_512_bits_unless_told_or_too_many_for_the_shape(shape: str, bits: int) -> None:
    succeed("new", "owner.key", "--owner", "ACME", "--shape", shape)
    assert Key.load("owner.key").bits == bits


def test_commit_prints_one_line() -> None:
    succeed("new", "owner.key", *NEW)
    assert succeed("commit", "owner.key") == Key.load("owner.key").statement() + "\n"


def test_show_describes_the_key() -> None:
    succeed("new", "owner.key", *NEW)
    key = Key.load("owner.key")
    output = succeed("show", "owner.key")
    for fact in ("ACME", "256 x 8 x 8", "16,384", "512", key.commitment):
        assert fact in output


@pytest.mark.parametrize("command", ["new", "show", "commit"])
def test_json(command: str) -> None:
    extra = NEW if command == "new" else []
    if not extra:
        succeed("new", "owner.key", *NEW)
    facts = json.loads(succeed(command, "owner.key", *extra, "--json"))
    key = Key.load("owner.key")
    assert facts["owner"] == "ACME"
    assert facts["shape"] == [256, 8, 8]
    assert facts["dimension"] == 16_384
    assert facts["bits"] == 512
    assert facts["version"] == 2
    assert facts["kind"] == "plain"
    assert facts["commitment"] == key.commitment
    assert facts["statement"] == key.statement()
    assert json.loads(facts["statement"])["evidence_key"] == facts["evidence_key"]
    assert facts["file"] == "owner.key"
    assert ("encrypted" in facts) == (command == "new")


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_nothing_printed_is_secret(flags: list[str]) -> None:
    outputs = [succeed("new", "owner.key", *NEW, *flags)]
    outputs += [succeed(command, "owner.key", *flags) for command in ("show", "commit")]
    seed = seed_of("owner.key")
    for output in outputs:
        assert seed not in output
        assert repr(bytes.fromhex(seed))[2:-1] not in output


def test_a_new_key_every_time() -> None:
    for name in ("a.key", "b.key"):
        succeed("new", name, *NEW)
    assert seed_of("a.key") != seed_of("b.key")


def test_an_existing_key_is_replaced_only_by_force() -> None:
    succeed("new", "owner.key", *NEW)
    before = Path("owner.key").read_bytes()
    assert "exists already" in str(fail("new", "owner.key", *NEW))
    assert Path("owner.key").read_bytes() == before
    succeed("new", "owner.key", *NEW, "--force")
    assert Path("owner.key").read_bytes() != before


# Passphrases.


def test_a_typed_passphrase_is_asked_for_twice_and_never_echoed() -> None:
    output = succeed("new", "owner.key", *NEW, "--passphrase", input="sesame\nsesame\n")
    assert "encrypted with your passphrase" in output
    key = Key.load("owner.key", passphrase="sesame")
    result = run("commit", "owner.key", "--passphrase", input="sesame\n")
    assert result.stdout.strip() == key.statement()  # the question went to standard error
    assert "sesame" not in output + result.output


def test_a_mistyped_passphrase_is_asked_for_again() -> None:
    typed = "sesame\nsesamy\nopen\nopen\n"
    succeed("new", "owner.key", *NEW, "--passphrase", input=typed)
    assert Key.load("owner.key", passphrase="open").owner == "ACME"


@pytest.mark.parametrize("content", [b"sesame", b"sesame\n", b"sesame\r\nsecond line\n"])
def test_passphrase_from_a_file(content: bytes) -> None:
    Path("word").write_bytes(content)
    facts = json.loads(succeed("new", "owner.key", *NEW, "--passphrase-file", "word", "--json"))
    assert facts["encrypted"] is True
    assert Key.load("owner.key", passphrase="sesame").owner == "ACME"
    assert "ACME" in succeed("show", "owner.key", "--passphrase-file", "word")


def test_passphrase_from_the_environment() -> None:
    variables = {"SIGIL_PASSPHRASE": "sesame"}
    succeed("new", "owner.key", *NEW, env=variables)
    assert Key.load("owner.key", passphrase="sesame").owner == "ACME"
    assert "ACME" in succeed("show", "owner.key", env=variables)
    assert "locked" in str(fail("show", "owner.key"))
    assert "wrong" in str(fail("show", "owner.key", env={"SIGIL_PASSPHRASE": "salami"}))


def test_the_terminal_and_a_file_come_before_the_environment() -> None:
    Path("word").write_text("from the file\n")
    variables = {"SIGIL_PASSPHRASE": "from the environment"}
    succeed("new", "a.key", *NEW, "--passphrase-file", "word", env=variables)
    succeed("new", "b.key", *NEW, "--passphrase", input="typed\ntyped\n", env=variables)
    assert Key.load("a.key", passphrase="from the file").owner == "ACME"
    assert Key.load("b.key", passphrase="typed").owner == "ACME"


def test_no_terminal_to_ask_at() -> None:
    error = fail("new", "owner.key", *NEW, "--passphrase", input="")
    assert isinstance(error, ConfigError)
    assert "--passphrase-file" in str(error)
    assert not Path("owner.key").exists()


def test_an_interrupt_at_the_question_stays_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise typer.Abort from KeyboardInterrupt()

    monkeypatch.setattr(typer, "prompt", interrupt)
    with pytest.raises(typer.Abort):
        read_passphrase(ask=True, file=None)


@pytest.mark.parametrize("content", [b"", b"\nsecond line\n", b"\xff\xfe", b"x" * 5_000])
def test_useless_passphrase_files_are_refused(content: bytes) -> None:
    Path("word").write_bytes(content)
    error = fail("new", "owner.key", *NEW, "--passphrase-file", "word")
    assert "holds no passphrase" in str(error)
    assert not Path("owner.key").exists()


def test_a_missing_passphrase_file_is_refused() -> None:
    assert "cannot be read" in str(fail("new", "owner.key", *NEW, "--passphrase-file", "word"))


def test_two_sources_are_refused() -> None:
    Path("word").write_text("sesame")
    arguments = ["--passphrase", "--passphrase-file", "word"]
    assert "not both" in str(fail("new", "owner.key", *NEW, *arguments))


def test_no_passphrase_on_the_command_line() -> None:
    assert run("new", "owner.key", *NEW, "--passphrase", "sesame").exit_code == 2
    assert not Path("owner.key").exists()


# Bad input.


@pytest.mark.parametrize("shape", ["256,8,8", "256x8x8", "256, 8, 8"])
def test_shapes(shape: str) -> None:
    succeed("new", "owner.key", "--owner", "ACME", "--shape", shape)
    assert Key.load("owner.key").shape == (256, 8, 8)


@pytest.mark.parametrize("shape", ["", "256,8,", "256;8", "a", "0", "-1", "1.5", "1,1,1,1,1"])
def test_impossible_shapes_are_refused(shape: str) -> None:
    error = fail("new", "owner.key", "--owner", "ACME", f"--shape={shape}")
    assert isinstance(error, ConfigError)
    assert "shape" in str(error)
    assert not Path("owner.key").exists()


@pytest.mark.parametrize("bits", ["0", "65537"])
def test_impossible_lengths_are_refused(bits: str) -> None:
    assert "number of bits" in str(fail("new", "owner.key", *NEW, "--bits", bits))


def test_an_impossible_owner_is_refused() -> None:
    error = fail("new", "owner.key", "--owner", "A\nB", "--shape", "4")
    assert "printable" in str(error)


@pytest.mark.parametrize("command", ["show", "commit"])
def test_a_missing_file_is_refused(command: str) -> None:
    assert isinstance(fail(command, "none.key"), KeyFileError)


# Through the whole program.


def test_main_returns_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", "owner.key", *NEW]) == 0
    capsys.readouterr()
    assert main(["key", "commit", "owner.key"]) == 0
    assert capsys.readouterr().out == Key.load("owner.key").statement() + "\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "none.key"],
        ["show", "bad.key"],
        ["show", "locked.key"],
        ["commit", "."],
        ["new", "bad.key", *NEW],
        ["new", "a.key", "--owner", "ACME", "--shape", "x"],
        ["new", "a.key", *NEW, "--bits", "many"],
        ["new", "a.key"],
        ["new", "a.key", *NEW, "--no-such-option"],
    ],
    ids=" ".join,
)
def test_main_returns_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.key").write_bytes(b'{"format":"sigil-key/2","sta')
    Key.generate("ACME", shape=(4,)).save("locked.key", passphrase="sesame")
    assert main(["key", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip()
    assert "Traceback" not in printed.err
    assert not Path("a.key").exists()


@pytest.mark.parametrize("command", ["new", "show", "commit"])
def test_help_shows_every_example_on_a_line_of_its_own(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["key", command, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index("Examples:")
    examples = lines[start + 1 : start + 4]
    assert all(example.startswith(f"sigil key {command} owner.key") for example in examples)


def test_examples_of_the_help_work(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    main(["key", "new", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = [line for line in lines if line.startswith("sigil key new")]
    assert len(examples) == 4
    for example in examples:
        arguments = [part for part in shlex.split(example)[2:] if part != "--passphrase"]
        succeed(*arguments, "--force")


def test_commands_load_torch_only_when_they_need_it() -> None:
    import subprocess

    program = "import sys, sigil.cli.key; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
