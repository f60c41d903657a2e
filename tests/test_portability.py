"""Training, verification and the demonstration without anything that only Linux has.

A Python without what macOS and Windows lack takes their place: in a process of its own and in every process
that this one starts.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sigil

# Documented by Python as available on Unix only, or on Linux only.
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
ATTRIBUTES = {
    "os": {
        "O_CLOEXEC", "O_DIRECTORY", "O_DSYNC", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "chown",
        "chroot", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "geteuid", "getgid", "getloadavg",
        "getpgid", "getpriority", "getsid", "getuid", "initgroups", "killpg", "lchown", "lockf", "major",
        "memfd_create", "mkfifo", "mknod", "nice", "openpty", "pipe2", "posix_fadvise", "posix_fallocate",
        "posix_spawn", "pread", "pwrite", "readv", "register_at_fork", "sched_getaffinity",
        "sched_setaffinity", "sched_yield", "sendfile", "setpgid", "setpriority", "setsid", "setuid",
        "statvfs", "sync", "sysconf", "uname", "wait", "wait3", "wait4", "writev",
    },
    "signal": {
        "SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm",
        "pause", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait",
    },
    "socket": {"AF_UNIX", "SO_REUSEPORT"},
    "time": {"clock_gettime", "clock_settime", "pthread_getcpuclockid", "tzset"},
}  # fmt: skip

# Not those that Python's own library uses, on a system where it has them.
SITE = """
import builtins, os, sys

for name in ("sched_getaffinity", "sched_setaffinity", "nice", "getloadavg", "statvfs", "O_DIRECTORY"):
    delattr(os, name)
real = builtins.__import__

def without(name, globals=None, *rest, **more):
    importer = (globals or {}).get("__name__", "")
    if name in {"fcntl", "resource", "pwd", "grp", "termios"} and importer.split(".")[0] == "sigil":
        raise ModuleNotFoundError(f"No module named {name!r}")
    return real(name, globals, *rest, **more)

builtins.__import__ = without
"""
SMALL = [
    "federation.clients=2",
    "federation.rounds=2",
    "data.train_limit=64",
    "data.test_limit=40",
    "model.width=4",
    "run.workers=2",
]
# All in one process, as every one takes seconds to begin.
PROGRAM = """
import contextlib, io, json, os, sys, types
from pathlib import Path
from sigil.cli.main import main
from sigil import files
from sigil.federation import workers

def run(*words):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main([*map(str, words)])
    return {"status": status, "printed": printed.getvalue()}

if __name__ == "__main__":
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    # Only on Linux are workers forks; elsewhere each is a new process.
    workers.sys = types.SimpleNamespace(platform="darwin")
    lacks = {
        "sched_getaffinity": not hasattr(os, "sched_getaffinity"),
        "fcntl": files.fcntl is None,
        "forkserver": workers.clean_processes().get_start_method() == "spawn",
    }
    train = run("train", "--quiet", "--out", folder / "run", *options)
    suspect, key = folder / "run/client.safetensors", folder / "run.key"
    verify = run("verify", suspect, "--key", key, "--json")

    from sigil import demo
    from sigil.federation.settings import make

    real = demo.settings

    def small(strength):
        values = real(strength).model_dump()
        values["federation"] |= {"clients": 2, "rounds": 1, "local_epochs": 1}
        values["data"] |= {"train_limit": 64, "test_limit": 40}
        values["model"] |= {"width": 4}
        values["run"] |= {"workers": 1}
        return make(values)

    demo.settings = small
    told = run("demo", "--quiet", "--out", folder / "demo")
    (folder / "done.json").write_text(
        json.dumps({"lacks": lacks, "train": train, "verify": verify, "demo": told})
    )
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a Python that lacks what other systems lack has trained, verified and told the demonstration."""
    folder = tmp_path_factory.mktemp("elsewhere")
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    program = folder / "program.py"
    program.write_text(PROGRAM)
    paths = [str(site), str(Path(sigil.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    options = [part for change in SMALL for part in ("--set", change)]
    command = [sys.executable, str(program), str(folder), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return folder


def told(folder: Path, command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "done.json").read_text())[command]
    return found


def test_the_stand_in_lacks_what_it_should(elsewhere: Path) -> None:
    assert told(elsewhere, "lacks") == {"sched_getaffinity": True, "fcntl": True, "forkserver": True}


def test_train_and_verify(elsewhere: Path) -> None:
    assert told(elsewhere, "train")["status"] == 0
    assert json.loads((elsewhere / "run" / "run.json").read_text())["finished"] is True
    verdict = told(elsewhere, "verify")
    assert verdict["status"] == 1
    assert json.loads(verdict["printed"])["owned"] is False  # two short rounds prove nothing


def test_demo(elsewhere: Path) -> None:
    assert told(elsewhere, "demo")["status"] in (0, 1)
    assert (elsewhere / "demo" / "report.html").exists()


def asks(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Call)
        and isinstance(node.test.func, ast.Name)
        and node.test.func.id == "hasattr"
    )


def posix_only(tree: ast.Module) -> list[str]:
    """Uses of what Unix alone has, outside `try` and `if hasattr(…)`, which provide for its absence."""
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.Try) or asks(node)]
    guarded = {id(inner) for guard in guards for inner in ast.walk(guard)}
    found = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in ATTRIBUTES.get(node.value.id, ()):
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            found += [node.module] if node.module in MODULES else []
            found += sorted(names & ATTRIBUTES.get(node.module or "", set()))
    return found


def test_what_looks_for_it_finds_it() -> None:
    text = """
import os, resource
from os import fork
os.nice(5)
getattr(os, "nice", None)
if hasattr(os, "nice"):
    os.nice(5)
try:
    import pwd
except ImportError:
    pass
"""
    assert posix_only(ast.parse(text)) == ["resource", "fork", "os.nice"]


def test_nothing_in_the_package_needs_unix() -> None:
    package = Path(sigil.__file__).parent
    found = {
        f"{path.relative_to(package)}: {use}"
        for path in package.rglob("*.py")
        for use in posix_only(ast.parse(path.read_text("utf-8")))
    }
    assert found == set()
