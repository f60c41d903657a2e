"""Flower's own commands as child processes, none of which outlives the process that started it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any

from sigil.errors import NetworkError

# Run in the child: a thread ends it as soon as its parent is gone, by whatever signal, so that no forgotten
# SuperLink keeps a port or a database: at first by a signal that lets a SuperNode tell the owner.
# What it prints may quote the other side, so it goes to the log without colours and with every other control
# character escaped, and a log that has grown too long is begun anew. Then the child is Flower's own command,
# with Flower's own arguments; when that returns the process ends, even if a thread of Flower's still serves.
_CHILD = r"""
import io, os, re, signal, sys, threading, time
from importlib.metadata import EntryPoint
parent, longest, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.argv[:4] = [command]
colour = re.compile(r"\x1b\[[0-9;]*m")
class Plain(io.TextIOWrapper):
    def write(self, text):
        if os.fstat(self.fileno()).st_size > longest:
            os.ftruncate(self.fileno(), 0)
        signs = colour.sub("", text)
        plain = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in signs)
        super().write("".join(plain))
        return len(text)
for name in ("stdout", "stderr"):
    plain = Plain(getattr(sys, name).detach(), "utf-8", "backslashreplace", line_buffering=True)
    setattr(sys, name, plain)
    setattr(sys, f"__{name}__", plain)
secret = os.environ.pop("SIGIL_SUPERLINK_SECRET", None)
if secret:
    import hmac, uvicorn
    run = uvicorn.run
    def run_guarded(app, **options):
        async def guarded(scope, receive, send):
            told = dict(scope.get("headers", ())).get(b"x-sigil-owner", b"")
            free = scope["type"] == "lifespan" or scope.get("path", "").startswith("/v1/runtime/")
            if free or hmac.compare_digest(told, secret.encode()):
                await app(scope, receive, send)
            else:
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b"This is for the owner alone."})
        run(guarded, **options)
    uvicorn.run = run_guarded
def watch():
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
EntryPoint("command", command, "").load()()
os._exit(0)
"""

# Anybody who reaches a SuperLink may start and stop its runs and register nodes, and other users of a machine
# reach its loopback address. So a SuperLink of ours answers only those who know a secret, in a header of each
# request (the programs here name it); its Runtime API asks for tokens of its own. The secret comes
# in the environment, which nobody but its user reads.
OWNER_HEADER = "x-sigil-owner"
_VARIABLE = "SIGIL_SUPERLINK_SECRET"

# Several commands in one process, as loading them takes longer than doing them. What each prints on standard
# output, one JSON object, follows on a line of its own.
_SEVERAL = """
import json, os, sys
from importlib.metadata import EntryPoint
import httpx
secret = os.environ.pop("SIGIL_SUPERLINK_SECRET")
class Client(httpx.Client):
    def __init__(self, **options):
        super().__init__(**options)
        self.headers["x-sigil-owner"] = secret
httpx.Client = Client
command = EntryPoint("command", sys.argv[1], "").load()
for line in json.loads(sys.argv[2]):
    sys.__stdout__.write("\\0")
    try:
        command(line)
    except SystemExit:
        pass
"""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TAIL_BYTES, _LINE_LENGTH = 16_384, 200
LOG_BYTES = 1 << 26
"""A child's log is begun anew when it is longer: the other side decides how much there is to say."""


def entry(command: str) -> str:
    """Where a command that Flower installs begins, as "module:function"."""
    points = entry_points(group="console_scripts", name=command)
    if not points:
        raise NetworkError(f"Flower's command {command} is not installed; install sigil-watermark[train].")
    (only,) = {point.value for point in points}
    return only


def quiet(home: Path) -> None:
    """Keep Flower, in this process and its children, to `home`, and from calling anybody.

    Call it before Flower is imported: some of these are read then.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_room(home, error) from None
    os.environ |= {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def start(
    command: str, arguments: Sequence[str], *, log: Path, secret: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a command of Flower's as a child that ends with this process; its output goes to `log`.

    What it serves, it serves to those who know the secret, if there is one.
    """
    with _opened(log) as file:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                _CHILD,
                str(os.getpid()),
                str(LOG_BYTES),
                entry(command),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=None if secret is None else os.environ | {_VARIABLE: secret},
            # Ctrl-C is for this process, which ends its children in its own order.
            start_new_session=True,
        )


def flwr(*commands: Sequence[str], home: Path, log: Path, secret: str) -> list[dict[str, Any]]:
    """What these commands of ``flwr`` answer, one after another; what else they say goes to `log`.

    Where the SuperLink is, they read in ``config.toml`` in `home`; `secret` is the one that it asks for.
    """
    lines = json.dumps([[*command, "--format", "json"] for command in commands])
    with _opened(log) as file:
        done = subprocess.run(
            [sys.executable, "-c", _SEVERAL, entry("flwr"), lines],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            env=os.environ | {"FLWR_HOME": str(home.resolve()), _VARIABLE: secret},
            start_new_session=True,
        )
        with suppress(OSError):  # a full disk is no reason to lose the answers
            file.write(done.stdout.replace(b"\0", b""))
            file.flush()
    try:
        answers: list[dict[str, Any]] = [json.loads(text) for text in done.stdout.split(b"\0")[1:]]
    except ValueError:
        answers = []
    if len(answers) != len(commands):
        raise NetworkError(f"Flower's command flwr did not answer as expected; {says_why(log)}.")
    return answers


def _opened(log: Path) -> IO[bytes]:
    try:
        return log.open("ab")
    except OSError as error:
        raise _no_room(log, error) from None


def _no_room(path: Path, error: OSError) -> NetworkError:
    return NetworkError(f"{path} cannot be written: {error.strerror}; make room or choose another place.")


def says_why(log: Path) -> str:
    """Where to look for the reason why a child failed, and the last lines there, for use in a sentence."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        text = ""
    # The log may quote a stranger: short and printable.
    plain = (_COLOUR.sub("", line).strip()[:_LINE_LENGTH] for line in text.splitlines())
    shown = ["".join(sign if sign.isprintable() else "?" for sign in line) for line in plain if line]
    return f"{log} says why" + (f", in the end: {' | '.join(shown[-3:])}" if shown else "")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a child: by a signal that it may answer, and after five seconds by one that it cannot."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port(*, wanted: int = 0) -> int:
    """A port of the loopback address that nobody uses at this moment; OSError if a wanted one is not free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", wanted))
        port: int = probe.getsockname()[1]
    return port
