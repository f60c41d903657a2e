"""Settings for every test: one thread per worker, what is drawn, and no process left behind."""

from __future__ import annotations

import logging
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import gc
import random
import time
import uuid
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil
import pytest
import torch
import typer.main
from hypothesis import settings

from harness import luck
from harness.commands import Command, contents

torch.set_num_threads(1)

# Typer builds all commands anew for each that is given, in 40 ms, and tests give thousands in one process.
typer.main.get_command = cache(typer.main.get_command)

# No file of a test must outlive a power cut, and a small training waits for the disk as long as it computes.
os.fsync = lambda descriptor: None

# The machine may be shared: a slow example is not a failing one. By default every run tries the same
# examples, so that a change is green or red by itself; `make fuzz` tries others, and more of them.
settings.register_profile("sigil", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile("sigil")

SESSION = "SIGIL_TEST_SESSION"  # inherited by everything that a test starts, also by children's children
GRACE = 120.0  # seconds for what is ending to be gone, however busy the machine is


ROOT = Path(__file__).parent
SUITES = {ROOT / "tests": "", ROOT / "reproduction" / "tests": "reproduction/"}
"""The two folders of tests, and what a name in the patterns begins with for each."""
LUCK = "luck", "luck and not slow"  # what `make luck` and the continuous integration run

FORMATS = (
    "attacks/test_*.py",
    "baselines/test_capability.py",
    "detectors/test_*.py",
    "federation/test_federation.py",
    "federation/test_run.py",
    "federation/test_s*.py",
    "test_injector.py",
    "transport/test_client_round.py",
    "transport/test_owner.py",
    "transport/test_remote.py",
    "transport/test_s*.py",
)
"""What depends on the number format, as patterns of test names; `make formats` runs it."""

SLOW = (
    "alignment/test_aligning.py",
    "alignment/test_correlations.py",
    "alignment/test_initial_weights.py::*densenet121*",
    "alignment/test_initial_weights.py::*mobilenetv2*",
    "alignment/test_references.py",
    "attacks/*",
    "baselines/test_capability.py::test_cooperating*",
    "cli/test_attack.py",
    "cli/test_card.py",
    "cli/test_detect.py",
    "cli/test_evidence.py",
    "cli/test_key.py::test_commands_load_torch*",
    "cli/test_main.py::test_a_reader*",
    "cli/test_main.py::test_help*",
    "cli/test_outputs.py",
    "cli/test_report.py",
    "cli/test_serve.py::test_a_simulation*",
    "cli/test_serve.py::test_prepare*",
    "cli/test_train.py",
    "cli/test_verify*.py",
    "data/test_charts.py",
    "docs/test_commands.py::test_every_block_runs*",
    "federation/test_federation.py::test_every_mode*",
    "federation/test_run.py",
    "federation/test_scheme.py",
    "federation/test_starving.py",
    "federation/test_workers.py",
    "frozen/*",
    "models/test_*.py::*densenet121*",
    "models/test_splitting.py::test_a_client_half_exports_to_onnx",
    "models/test_splitting.py::test_a_client_half_is_one_graph*",
    "keys/seal/*",
    "reproduction/*",
    "suspect/*",
    "test_demo.py",
    "test_docs.py",
    "test_hardware.py::test_a_worker*",
    "test_inspection.py",
    "test_local_ray.py",
    "test_eager.py::test_the_compiler*",
    "test_portability.py::test_demo",
    "test_portability.py::test_the_stand_in*",
    "test_portability.py::test_train*",
    "test_statistics.py::test_p_is_*",
    "test_suite.py::test_a_childs_child*",
    "transport/*",
    "verdict/test_clean_readings.py",
    "verdict/test_descent.py::test_the_order_found*",
    "verdict/test_dodged_readings.py",
    "verdict/test_invariance.py",
    "verdict/test_verification.py::*any_of_many_keys",
)
"""What starts processes or trains for longer than seconds, as patterns; `make quick` leaves it out."""


FIRST = (
    "transport/test_faults.py",
    "reproduction/test_reproduce.py",
    "docs/test_commands.py",
    "transport/flower/test_deployment.py",
    "transport/test_hostile_clients.py",
    "test_demo.py",
    "verdict/test_invariance.py",
    "test_tracing.py",
    "transport/test_service.py",
    "suspect/*",
    "cli/test_serve.py",
    "test_portability.py",
    "alignment/*",
    "federation/*",
    "test_examples.py",
    "verdict/*",
    "transport/*",
    "reproduction/*",
    "cli/*",
    "attacks/*",
    "test_extras.py",
)
"""What takes longest, longest first, as patterns: begun last, it would keep one worker busy alone."""


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not depend on the user's own data or passphrase."""
    for name in ("SIGIL_DATA", "SIGIL_CACHE", "SIGIL_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _same_handlers() -> Iterator[None]:
    """A command that a test runs in this process shows its log on a stream that ends with the test."""
    before = [(each, each.handlers[:], each.level) for each in map(logging.getLogger, ("sigil", "flwr"))]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make luck` gives: another draw of all keys and seeds, and a file for the margins."""
    parser.addoption("--draw", type=int, default=0, help="other keys and seeds in every test (0: as written)")
    parser.addoption("--margins", type=Path, help="where to add how near each test came to its limits")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test draws anything."""
    luck.redraw(config.option.draw)


@pytest.fixture(autouse=True)
def _same_draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test draws without a seed is the same each time, whatever ran before it."""
    seed = random.Random(f"{request.config.option.draw} {request.node.nodeid}")
    torch.manual_seed(seed.getrandbits(32))
    monkeypatch.setattr("secrets.token_bytes", seed.randbytes)


@pytest.fixture
def margin(request: pytest.FixtureRequest) -> luck.Margin:
    """Assert a number that luck decides: the test is repeated by `make luck`, which shows its margin."""
    return luck.Margin(request.node.nodeid, request.config.option.margins)


@pytest.fixture
def succeed(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that must succeed; returns what it printed."""

    def run(*arguments: object) -> str:
        from sigil.cli.main import main

        assert main([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that must be refused, with one sentence and nothing else; returns the sentence."""

    def run(*arguments: object) -> str:
        from sigil.cli.main import main

        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2, arguments
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("sigil: ")
        assert printed.err.count("\n") == 1, printed.err
        return printed.err

    return run


@pytest.fixture
def unchanged(refused: Command) -> Command:
    """The same in one string; the command must also have changed no file of the current folder."""

    def run(line: str) -> str:
        before = contents()
        sentence = refused(*line.split())
        assert contents() == before, line
        return sentence

    return run


@pytest.fixture(scope="session")
def patterns() -> tuple[str, ...]:
    """By which tests are marked and put in order."""
    return *FORMATS, *SLOW, *FIRST


@pytest.fixture(scope="session")
def leftovers() -> Callable[[], list[str]]:
    """The command lines of the processes that run because of this session, itself not counted."""
    os.environ[SESSION] = uuid.uuid4().hex
    return lambda: [line for _, line in _offspring(os.environ[SESSION])]


def _offspring(session: str) -> list[tuple[psutil.Process, str]]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(SESSION) == session:
                found.append((process, " ".join(process.cmdline())))
    return found


@pytest.fixture(scope="module", autouse=True)
def _every_process_is_ended(leftovers: Callable[[], list[str]]) -> Iterator[None]:
    """Whatever a file of tests starts has ended when the file is done, also what lost its parent."""
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # lives as long as Python
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # and so does this

    def others() -> list[tuple[psutil.Process, str]]:
        return [each for each in _offspring(os.environ[SESSION]) if each[0].pid != server]

    last = time.monotonic() + GRACE
    while (found := others()) and time.monotonic() < last:
        time.sleep(0.1)
    for process, _ in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    assert not found, [line for _, line in found]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The half a million objects of what is imported and collected stay: none is looked at as garbage.

    Otherwise that takes a third of the time of collecting, and of a test each time it happens there.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files and folders that the marker leaves out, as importing them takes long."""
    wanted = config.option.markexpr
    place = _name(collection_path)
    if wanted not in (*LUCK, "not slow", "formats") or not place:
        return None
    if not (collection_path.is_dir() or fnmatchcase(collection_path.name, "test_*.py")):
        return None
    if wanted in LUCK:
        return (
            collection_path.is_file() and "margin: Margin" not in collection_path.read_text("utf-8")
        ) or None
    if wanted == "not slow":
        inside = f"{place}/*" if collection_path.is_dir() else place
        return any("::" not in pattern and fnmatchcase(inside, pattern) for pattern in SLOW) or None
    if collection_path.is_dir():
        return not any(pattern.startswith(f"{place}/") for pattern in FORMATS) or None
    return not any(fnmatchcase(place, pattern.partition("::")[0]) for pattern in FORMATS) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by the patterns above, and put the files that take longest first."""
    items.sort(key=lambda item: _place(_file(item)))
    for item in items:
        _, _, test = item.nodeid.partition("::")
        file = _file(item)
        for marker, patterns in (("formats", FORMATS), ("slow", SLOW)):
            if any(_matches(file, test, pattern) for pattern in patterns):
                item.add_marker(marker)
        if "margin" in getattr(item, "fixturenames", ()):
            item.add_marker("luck")


def _file(item: pytest.Item) -> str:
    return _name(item.path)


def _name(path: Path) -> str:
    """A file or folder of tests as the patterns name it; nothing for what is not inside one of the two."""
    for suite, start in SUITES.items():
        if path != suite and path.is_relative_to(suite):
            return start + path.relative_to(suite).as_posix()
    return ""


def _place(file: str) -> int:
    return next((place for place, pattern in enumerate(FIRST) if fnmatchcase(file, pattern)), len(FIRST))


def _matches(file: str, test: str, pattern: str) -> bool:
    place, _, name = pattern.partition("::")
    return fnmatchcase(file, place) and fnmatchcase(test, name or "*")
