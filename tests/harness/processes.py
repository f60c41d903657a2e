"""An owner and its clients as real processes on one machine, to see what a fault does.

The tests of faults and ``benchmarks/faults.py`` kill, stop and restart what this starts::

    with TrainingProcesses(Path("runs/a"), clients=2, options=["--set", "federation.rounds=3"]) as training:
        owner = training.serve()
        clients = [training.join(index, "--part", str(index)) for index in range(2)]
        training.reach(1)                  # in the middle of a round
        clients[1].kill()
        …
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sigil.errors import NetworkError
from sigil.serving import Closing
from sigil.transport.certificates import bundle_folder
from sigil.transport.flower.processes import free_port

_TESTS = Path(__file__).parents[1]
_SAMPLE = re.compile(r'^(sigil_\w+)(?:\{reason="(\w+)"\})? (\S+)$', re.MULTILINE)


class TrainingProcesses(Closing):
    """One owner and some clients; all processes end with it."""

    def __init__(self, out: Path, *, clients: int, options: Sequence[str] = ()) -> None:
        self.out = out
        self.network = out.with_name(out.name + ".network")
        self.log = out.with_name(out.name + ".log")
        self.clients = clients
        self.port = free_pair()
        self._metrics_port = free_pair()
        self._options = options
        self._processes: dict[subprocess.Popen[bytes], Path] = {}
        # What clients said before the owner or they themselves were started is no news of a round.
        self._heard = dict.fromkeys(range(clients), 0)
        self._owner: subprocess.Popen[bytes] | None = None

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the owner, or start it again; returns when clients can join."""
        before = self.said("Clients join with")
        self._owner = self._start(
            *("serve", "--out", str(self.out), "--clients", str(self.clients), *self._options),
            *("--port", str(self.port), "--metrics-port", str(self._metrics_port)),
            log=self.log,
        )
        self.until(lambda: self.said("Clients join with") > before)
        self._heard = {client: len(self._spoken(client)) for client in self._heard}
        return self._owner

    def join(self, client: int, *options: str, hostile: str | None = None) -> subprocess.Popen[bytes]:
        """Start a client; `hostile` is a kind of :mod:`harness.hostile_clients`."""
        bundle = bundle_folder(self.network, client)
        self._heard[client] = len(self._spoken(client))
        log = bundle / "join.log"
        arguments = (str(bundle), "--part", str(client), *options)
        if hostile is not None:
            return self._start(hostile, *arguments, log=log, module="harness.hostile_clients")
        return self._start("join", *arguments, log=log)

    def said(self, words: str) -> int:
        """How often the owner has printed these words."""
        with suppress(FileNotFoundError):
            return self.log.read_text(errors="replace").count(words)
        return 0

    def metrics(self) -> dict[str, float]:
        """The owner's counters now, refusals as ``sigil_rejected_total/reason``; nothing if it is away."""
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=5) as answer,
        ):
            found = _SAMPLE.findall(answer.read().decode())
            return {f"{name}/{reason}" if reason else name: float(value) for name, reason, value in found}
        return {}

    def reach(self, client: int, *, steps: int = 8, after: int = 0) -> int:
        """Wait until a client is in the middle of a round later than `after`; returns the round's number.

        The middle is when the owner has counted `steps` more steps and this client is not through.
        """
        begun: dict[int, float] = {}

        def middle() -> bool:
            number = self._round_of(client)
            if number is None or number <= after:
                begun.clear()
                return False
            counted = self.metrics().get("sigil_steps_total", 0.0)
            return counted - begun.setdefault(number, counted) >= steps and self._round_of(client) == number

        self.until(middle)
        return max(begun)

    def _round_of(self, client: int) -> int | None:
        """The round in which a client is now, by its own account."""
        news = self._spoken(client)[self._heard[client] :]
        said = re.findall(r"^round (\d+)( begins|:)", news, re.MULTILINE)
        return int(said[-1][0]) if said and said[-1][1] == " begins" else None

    def _spoken(self, client: int) -> str:
        """All that a client has printed."""
        with suppress(FileNotFoundError):
            return (bundle_folder(self.network, client) / "join.log").read_text(errors="replace")
        return ""

    def until(self, condition: Callable[[], bool], *, seconds: float = 1800) -> None:
        """Wait until something is so; an error if it is not in time.

        It is one at once if the owner has ended before, or a client with an error: one that was killed has a
        negative status.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            failed = [log for process, log in self._processes.items() if (process.poll() or 0) > 0]
            if self._owner is not None and self._owner.poll() is not None:
                failed.append(self.log)
            if failed or time.monotonic() > deadline:
                ends = [f"{log}:\n{_tail(log)}" for log in dict.fromkeys((self.log, *failed))]
                raise NetworkError("\n".join(["What was waited for did not happen.", *ends]))
            # Often enough: asking the owner for its counters costs it milliseconds of the core it works on.
            time.sleep(0.05)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, *arguments: str, log: Path, module: str = "sigil.cli.main") -> subprocess.Popen[bytes]:
        log.parent.mkdir(parents=True, exist_ok=True)
        # Where clients keep what they need while they run, and leave it if they are killed.
        temporary = self.out.with_name(self.out.name + ".tmp")
        temporary.mkdir(exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(temporary.resolve()), "PYTHONPATH": str(_TESTS)},
            )
        self._processes[process] = log
        return process


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""


def free_pair() -> int:
    """A free port whose successor is free too.

    Both stay free until somebody asks for them: systems give no connection a port below 32768 unasked, as
    they did with the successor of a port that they had chosen themselves. One of 10,000 pairs, drawn anew for
    each training: two that run at once choose the same one once in 5,000 times.
    """
    while True:
        port = 2 * random.SystemRandom().randrange(6_000, 16_000)
        with suppress(OSError):
            return free_port(wanted=free_port(wanted=port) + 1) - 1
