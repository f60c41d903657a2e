"""Every command and every program in the documentation runs, in the order in which a reader meets it.

The pages of a track run in one fresh folder, one after the other, with the core and the extras that the pages
so far have named; every other page runs alone. Commands run in this process, through `sigil.cli.main`, and
must end with the status that the page promises. What a page takes for granted is in PRESUPPOSED and NAMES,
what is changed to make it small in SMALLER, TRAINING and SERVED, what is only parsed in PARSED. A block that
fits none of this fails.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from harness.openssl_authority import OpenSslAuthority
from harness.processes import free_pair
from harness.waiting import until
from sigil.cli.main import app, main
from sigil.extras import EXTRAS
from sigil.federation.settings import read

SIGIL: Any = typer.main.get_command(app)
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

TRACKS = {
    "readme": ("README.md",),
    "first verdict": ("tutorial.md", "audit.md", "suspects.md", "evidence.md", "tracing.md", "extend.md"),
    "across machines": ("across-machines.md", "deployment.md"),
    "own server": ("own-server.md", "choose.md"),
    "own data": ("own-data.md",),
}
"""Pages that are read in one folder, in this order."""
ALONE = {
    page.name: (page.name,) for page in PAGES if not any(page.name in pages for pages in TRACKS.values())
}

PRESUPPOSED = {
    "attacks.md": ("owner.key", "runs/a"),
    "evidence.md": ("root.pem",),  # from an authority
    "models.md": ("owner.key",),
}
"""Files that a page takes for granted; conftest.py makes them."""

NAMES = {
    "own-server.md": """
import sigil, torch
from torch import nn
server = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
activation = torch.rand(4, 64, 2, 2, requires_grad=True)
received, gradient_from_client = torch.rand(4, 64, 2, 2), torch.rand(4, 10)
def send(gradient): assert gradient.shape == (4, 64, 2, 2)
""",
    "attacks.md": """
import sigil
from pathlib import Path
from sigil.federation import Recording, open_run
key, recording = sigil.Key.load("owner.key"), Recording(Path("runs/a/recording"))
model = sigil.models.join(*open_run(Path("runs/a")).halves())
from sigil import data
own = sigil.attacks.share(data.load("digits"), range(100))
""",
}
"""Python names that the programs of a page take for granted."""

ELSEWHERE = {
    ("p-value.md", ">>>"): "tests/test_statistics.py",
}
"""Programs that another test runs already, and asks more of: page and what the program contains."""

TRAINING = shlex.split(
    "--set model.width=8 --set data.train_limit=64 --set data.test_limit=32 --set federation.clients=2 "
    "--set federation.rounds=1 --set federation.batch_size=16 --set run.workers=1 --set run.threads=1"
)
"""Added to every `sigil train` of a page that does not run as it is written."""

ONE_KEY = """
import random, secrets, sys
secrets.token_bytes = random.Random(0).randbytes
from sigil.cli.main import main
sys.exit(main())
"""
"""`sigil`, with the same key each time."""

SERVED = shlex.split("--set data.train_limit=700 --set run.threads=1")
"""Added to `sigil serve` where it is run."""

AS_WRITTEN = (
    *("README.md", "tutorial.md", "audit.md", "suspects.md", "evidence.md", "tracing.md", "extend.md"),
    *("own-server.md", "choose.md"),
)

SMALLER = (
    # what needs files or the network
    (r"(?<=data\.name=)(cifar10|hub:\S+)", "digits"),
    (r"(?<=--data )cifar10", "digits"),
    (r"(?<=show )cifar10|(?<=partition )cifar10", "digits"),
    (r" --data-dir \S+", ""),
    (r'"cifar10", data_dir="~/data"', '"digits", test_limit=100'),
    # shapes of a model of width 64 on CIFAR-10: those of width 8 on digits
    (r"--shape 256,8,8", "--shape 32,2,2"),
    (r"--input-shape 3,32,32", "--input-shape 1,8,8 --width 8"),
    (r"input_shape=\(3, 32, 32\)\)", "input_shape=(1, 8, 8), width=8)"),
    (r'"vgg11", classes=10, width=32', '"vgg11", classes=10, width=4, channels=1'),
    # a key may be there already, of a block before
    (r"sigil key new", "sigil key new --force"),
    # the recorded run of three rounds is there already
    (r"-o runs/a --set 'record.clients=\[0\]' …", "-o runs/recorded --set 'record.clients=[0]'"),
    (r"--early \S+", "--early 1"),
    (r"--late \S+", "--late 3"),
    (r"early_rounds=\[1, 2\], late_rounds=range\(70, 81\)", "early_rounds=[1], late_rounds=[3], epochs=1"),
    # minutes become seconds
    (r"--epochs \d+", "--epochs 1"),
    (r"sigil attack (subspace|overwrite|extract)", r"\g<0> --epochs 1"),
    (r"--steps 100", "--steps 2"),
    (r"extract\(halves, student, own\)", "extract(halves, student, own, epochs=1)"),
    (r'"federation": {', '"data": {"train_limit": 200}, "federation": {'),
    (r'"rounds": \d+', '"rounds": 1'),
    (r'data\.load\("digits"\)', 'data.load("digits", train_limit=200, test_limit=100)'),
    # a hundredth of 32 images is none
    (r"sigil detect (\S+)(?: --share \S+)?", r"sigil detect \1 --share 0.5"),
)
"""What makes commands and programs small enough for a test."""

PARSED = {
    "sigil demo": "tests/test_demo.py runs it",
    "sigil reproduce": "reproduction/tests/test_reproduce.py runs it",
    "sigil report": "the same, and tests/cli/test_report.py",
    "sigil data fetch": "downloads; tests/data/test_downloads.py runs it against a local server",
    "sigil serve": "in a page's text; where a page names its terminal it is run",
}
"""Commands that are not run here, but must be understood by the command line as they are written."""

WHO = r"(?:(?:owner|client) +)?"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}, line {self.line}"


@dataclass
class Session:
    """What the blocks of one page have in common: Python names, and the outcome of the last block."""

    page: str
    names: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    output: str = ""
    terminals: list[subprocess.Popen[str]] = field(default_factory=list)

    def wait(self) -> None:
        """Until all that runs in other terminals has ended well; if one has not, the others are ended."""

        def through() -> bool:
            codes = [process.poll() for process in self.terminals]
            return any(codes) or None not in codes

        until(through, seconds=900)
        codes = [process.poll() for process in self.terminals]
        printed = self.end()
        assert not any(codes), printed

    def end(self) -> str:
        """End what still runs in other terminals; returns what they printed."""
        for process in self.terminals:
            process.kill()
        printed = [process.communicate()[0] for process in self.terminals]
        self.terminals.clear()
        return "\n".join(printed)


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page; a fence that is not understood is an error."""
    text = page.read_text("utf-8")
    fenced = r"^```(\w*)(?: title=\"([^\"\n]+)\")?\n(.*?)^```$"
    found = list(re.finditer(fenced, text, re.MULTILINE | re.DOTALL))
    fences = re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)
    assert len(fences) == 2 * len(found), f"{page.name}: a fence that is not understood"
    for match in found:
        line = text[: match.start(3)].count("\n")
        yield Block(page.name, line, match[1], match[2] or "", match[3])


def is_command(line: str) -> bool:
    """Whether a line of a block without a language is for the shell; who types it may stand in front."""
    programs = "sigil|make|pip|python3?|pytest|openssl|tensorboard|flwr|flower-[a-z]+"
    return bool(re.match(rf"{WHO}({programs}) ", line))


@pytest.mark.parametrize("track", [*TRACKS, *ALONE])
def test_every_block_runs(
    track: str, put: Callable[[str, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "110")
    # Keys that a page makes are the same each time: no outcome of this test depends on luck.
    monkeypatch.setattr("secrets.token_bytes", random.Random(track).randbytes)
    installed: set[str] = set()
    for name in (TRACKS | ALONE)[track]:
        page = next(page for page in PAGES if page.name == name)
        with pytest.MonkeyPatch.context() as patch:
            if track in TRACKS:
                installed |= named_modules(page.read_text("utf-8"))
                hide(patch, {module for extra in EXTRAS.values() for module in extra} - installed)
            for presupposed in PRESUPPOSED.get(name, ()):
                put(presupposed, tmp_path)
            run_page(page)


def named_modules(text: str) -> set[str]:
    """What the extras that a page names bring."""
    extras = set(re.findall(r"\[(\w+)\]'?`", text)) & set(EXTRAS)
    extras |= {"train"} if extras & {"network", "simulation"} else set()
    found = {module for extra in extras for module in EXTRAS[extra]}
    return found | ({"sklearn"} if "`pip install scikit-learn`" in text else set())


def hide(patch: pytest.MonkeyPatch, modules: set[str]) -> None:
    """As if these modules were not installed."""
    for name in [*sys.modules, *modules]:
        if name.partition(".")[0] in modules:
            patch.setitem(sys.modules, name, None)


def run_page(page: Path) -> None:
    """The blocks of one page, in order; whatever it starts ends with it."""
    session = Session(page.name)
    try:
        run_blocks(page, session)
    finally:
        sys.stdout.write(session.end())  # which a failure shows


def run_blocks(page: Path, session: Session) -> None:
    exec(NAMES.get(page.name, ""), session.names)
    end = Block(page.name, 0, "text", "", "")
    for block, following in pairwise([*blocks(page), end]):
        if not block.title.startswith("terminal"):
            session.wait()
        if block.language == "python":
            if block.title.endswith(".py"):
                Path(block.title).write_text(block.text, "utf-8")
            run_program(block, session)
        elif block.title.startswith("prints"):
            compare(block.text.splitlines(), session, block)
        elif block.language == "sh":
            run_commands(block, session, promised=following.title * following.title.startswith("prints"))
        elif block.language in ("", "text", "console"):
            lines = block.text.splitlines()
            if any(line.startswith("$ ") for line in lines):
                run_conversation(block, session)
            elif any(is_command(line) for line in lines):
                run_commands(block, session)
            # What remains is a picture, a formula, a layout of files: nothing to run.
        else:
            pytest.fail(f"{block}: no rule for a block of {block.language!r}")


def test_every_tutorial_and_how_to_is_in_a_track() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:")[1]
    guided = nav[nav.index("- Tutorials:") : nav.index("- Explanation:")]
    assert set(re.findall(r": (\S+\.md)$", guided, re.MULTILINE)) == {
        page for pages in TRACKS.values() for page in pages
    } - {"README.md"}


def test_no_two_tracks_train_a_run_of_the_same_name() -> None:
    """README and tutorial both trained `runs/first`, with other settings: the second was refused."""
    made: dict[str, str] = {}
    for track, pages in TRACKS.items():
        text = "".join(page.read_text("utf-8") for page in PAGES if page.name in pages).replace("\\\n", " ")
        runs = re.findall(r"sigil (?:train|serve)[^\n`]*? (?:-o|--out) ([\w/.-]+)", text)
        assert {made.setdefault(run, track) for run in runs} <= {track}
    assert {"runs/first", "runs/net"} <= made.keys()


def smaller(text: str, page: str) -> str:
    """The text of a command or program with small settings in place of real ones."""
    if page not in AS_WRITTEN:
        for pattern, replacement in SMALLER:
            text = re.sub(pattern, replacement, text)
    return text


def run_program(block: Block, session: Session) -> None:
    """Execute a Python block after those before it, unless another test does."""
    for (page, part), test in ELSEWHERE.items():
        if block.page == page and part in block.text:
            assert page in (ROOT / test).read_text("utf-8"), f"{test} does not run {page}"
            return
    # Empty lines in front, so that a traceback shows the line of the page.
    program = compile("\n" * block.line + smaller(block.text, block.page), block.page, "exec")
    printed = io.StringIO()
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(printed):
        exec(program, session.names)
    session.output = printed.getvalue()


def run_commands(block: Block, session: Session, *, promised: str = "") -> None:
    """Run the lines of a shell block; the last one must end as the title of the next block promises."""
    *first, last = logical_lines(block.text)
    for line in first:
        run_line(line, session, block)
    status = re.search(r"exit status (\d)", promised)
    run_line(last, session, block, status=int(status[1]) if status else 0 if promised else None)


def run_conversation(block: Block, session: Session) -> None:
    """Run the lines after `$` and compare what they print with what stands below them."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        (command, *shown) = logical_lines(part)
        error = bool(shown) and shown[0].startswith("sigil: ")
        run_line(command, session, block, status=2 if error else 0)
        compare(shown, session, block)


def compare(shown: list[str], session: Session, block: Block) -> None:
    """Every line shown must have been printed; … stands for anything."""
    printed = [line.rstrip() for line in session.output.splitlines()]
    for line in filter(None, (line.rstrip() for line in shown)):
        pattern = ".*".join(map(re.escape, line.split("…")))
        assert any(re.fullmatch(pattern, each) for each in printed), f"{block}: {line!r} not in {printed}"


def logical_lines(text: str) -> list[str]:
    """Lines without comments and empty ones, those that end with a backslash joined to the next."""
    joined = text.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def run_line(line: str, session: Session, block: Block, *, status: int | None = None) -> None:
    """Run one line of a shell: commands with && between them, perhaps an output file."""
    line = smaller(re.sub(f"^{WHO}", "", line), block.page)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for token in lexer:
        if token == "&&":
            commands.append([])
        else:
            commands[-1].append(expanded(token))
    for command in commands:
        target = None
        if len(command) > 2 and command[-2] == ">":
            target = Path(command[-1])
            command = command[:-2]
        assert not {"|", ";", "<", ">", "&"} & set(command), f"{block}: no rule for {line!r}"
        run_command(command, session, block, status=status)
        if target is not None:
            target.write_text(session.output)


def expanded(token: str) -> str:
    """A word as the shell would give it to a program."""
    content = re.fullmatch(r"\$\(cat (\S+)\)", token)
    return Path(content[1]).read_text().strip() if content else os.path.expanduser(token)


def run_command(command: list[str], session: Session, block: Block, *, status: int | None) -> None:
    """Run one program, or check it in the way that its kind allows."""
    program, *arguments = command
    where = f"{block}: {shlex.join(command)}"
    if program == "sigil" and block.title.startswith("terminal"):
        session.terminals.append(start(arguments, session.terminals))
    elif program == "sigil" and block.title == "needs the network":
        parse(arguments)
    elif program == "sigil":
        run_sigil(arguments, session, where, status=status)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert arguments, where
        assert set(arguments) <= set(targets), where
    elif program == "python" and Path(arguments[0]).exists():
        printed = io.StringIO()
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(printed):
            runpy.run_path(arguments[0], run_name="__main__")
        session.output = printed.getvalue()
    elif program in ("pytest", "python", "PYTHONPATH=tests"):
        files = [argument for argument in arguments if "/" in argument]
        assert files, where
        assert all((ROOT / file).exists() for file in files), where
    elif program in ("flwr", "flower-superlink", "flower-supernode"):
        described = help_of(program, *(arguments[:1] if program == "flwr" else ()))
        asked = [word for word in arguments if word.startswith("--")] or arguments[:1]
        assert all(re.search(rf"{re.escape(word)}\b", described) for word in asked), where
    elif program == "curl":
        # An authority is asked: OpenSSL's, whose root conftest.py made.
        query = next(word for word in arguments if word.startswith("@")).removeprefix("@")
        answer = OpenSslAuthority.of(Path("root.pem")).answer(Path(query).read_bytes())
        Path(arguments[arguments.index("-o") + 1]).write_bytes(answer)
    elif program == "pip":
        check_installation(arguments, where)
    elif program in ("openssl", "sha256sum"):
        subprocess.run(command, check=True, capture_output=True)
    else:
        assert command == [".", ".venv/bin/activate"], f"{where}: no rule for this program"


def check_installation(arguments: list[str], where: str) -> None:
    """`pip install` names this project, with extras that it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    verb, *wanted = arguments
    assert verb == "install", where
    for each in wanted:
        name, _, extras = each.rstrip("]").partition("[")
        assert name == project["name"], where
        assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"]), where


def help_of(program: str, *subcommand: str) -> str:
    """What a program of another package, or a command of it, says about its own options."""
    (script,) = entry_points(group="console_scripts", name=program)
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        patch.setattr("sys.argv", [program, *subcommand, "--help"])
        script.load()()
    return printed.getvalue()


def run_sigil(arguments: list[str], session: Session, where: str, *, status: int | None) -> None:
    """Run `sigil` in this process, or only parse what takes other machines, minutes or the network."""
    full = ["sigil", *arguments]
    if any(full[: len(name.split())] == name.split() for name in PARSED):
        parse(arguments)
        return
    if arguments[0] == "train" and session.page not in AS_WRITTEN:
        arguments = [*arguments, *TRAINING]
    if arguments[0] == "attack":
        # Examples follow each other on a page, but each stands for itself.
        shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        session.status = main(arguments)
    session.output = printed.getvalue()
    expected = {status} if status is not None else {0, 1} if arguments[0] == "verify" else {0}
    assert session.status in expected, f"{where}\n{session.output}"


def start(arguments: list[str], others: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """`sigil serve` or `sigil join` as a process; a client's folder must be there first."""
    if arguments[0] == "serve":
        arguments = [*arguments, "--port", str(free_pair()), *SERVED]
    else:
        made = Path(arguments[1]) / "client.pem"
        until(made.exists, alive=lambda: all(other.poll() is None for other in others))
    command = [sys.executable, "-c", ONE_KEY, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def parse(arguments: list[str]) -> None:
    """Let the command line read the arguments, without running the command."""
    command = SIGIL
    context = command.make_context("sigil", list(arguments))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    if context.params.get("change"):
        read(None, context.params["change"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_exist(page: Path) -> None:
    """`sigil data show --json` in a sentence: there is such a command, and it has such an option."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for mention in re.findall(r"`sigil ([^`]+)`", prose):
        words = shlex.split(mention.replace("\n", " "))
        command = SIGIL
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        context = command.context_class(command)
        known = {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
        unknown = {word.partition("=")[0] for word in words if word.startswith("-")} - known
        assert not unknown, f"{page.name}: `sigil {mention}` has no {unknown}"
        # A group's name is followed by one of its commands, or by a word in capitals that stands for one.
        missing = hasattr(command, "commands") and words and words[0].isalpha() and words[0].islower()
        assert not missing, f"{page.name}: there is no command `sigil {mention}`"


def examples() -> list[str]:
    """The command lines that `--help` shows, without the remarks beside them."""
    found = []
    waiting = [SIGIL]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        text = re.sub(r" *\\\n +", " ", command.help or "")
        found += [line.strip() for line in text.splitlines() if re.match(r" +(\w+=\S+ )?sigil ", line)]
    return [re.split(r" {3,}| > ", line)[0] for line in found]


@pytest.mark.parametrize("example", examples())
def test_the_examples_of_the_help_are_understood(example: str) -> None:
    parse(shlex.split(example[example.index("sigil ") :])[1:])
    # Without one of these nobody vouches for the signer, and the status is 1.
    assert "evidence check" not in example or re.search("--(statement|signer|key) ", example)
