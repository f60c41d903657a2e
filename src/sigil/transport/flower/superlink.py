"""The owner's SuperLink: on the loopback address only, with its nodes, its run and its ServerApp."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from sigil import files
from sigil.errors import NetworkError
from sigil.serving import Closing
from sigil.transport.flower.adapter import Runtime, TaskIdentity, ask, grid_of
from sigil.transport.flower.processes import flwr, free_port, says_why, start, stop

APP = Path(__file__).parent / "app"
START_SECONDS = 600.0


class SuperLink(Closing):
    """A SuperLink that lives as long as this object or this process, whichever ends first.

    What it knows (nodes and their public keys) is in ``superlink.db`` in `folder`, beside its certificates:
    clients which were connected to it find themselves known again after any restart.
    """

    def __init__(self, folder: Path) -> None:
        ca = folder / "ca.pem"
        self.address = f"127.0.0.1:{free_port()}"
        self._log = folder / "superlink.log"
        self._home = folder / "flower"
        self._closing = False
        self._stopped = False
        self.secret = secrets.token_hex(32)
        self._certificates = ca.read_bytes()
        database = folder / "superlink.db"
        self._new = not database.exists()
        secret = folder / "tasks.secret"
        files.write(secret, secrets.token_bytes(32), replace=True, mode=0o600, raises=NetworkError)
        self._runtime = Runtime(self.address, secret.read_bytes(), self._certificates)
        host, port = self.address.split(":")
        self._process = start(
            "flower-superlink",
            [
                *("--ssl-ca-certfile", str(ca), "--ssl-certfile", str(folder / "server.pem")),
                *("--ssl-keyfile", str(folder / "server.key")),
                *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
                *("--host", host, "--port", port, "--database", str(database)),
                *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            ],
            log=self._log,
            secret=self.secret,
        )
        try:
            self._wait()
            self._check_secret(ca)
            self._name_connection(ca)
        except BaseException:
            # Nobody has this object yet, so nobody else could end what was started.
            stop(self._process)
            raise

    def run(
        self, app: ServerApp, *, nodes: Iterable[Path] = (), ready: Callable[[], None] = lambda: None
    ) -> None:
        """Do a run of `app` in this process, after ending those that an earlier process left behind.

        The nodes with these public keys may take part, beside those that may already; `ready` is called as
        soon as they can join.
        """
        registrations = [("supernode", "register", str(file)) for file in nodes]
        left = [] if self._new else self._unfinished()
        self._new = False
        *answers, started = self._flwr(*registrations, *(("stop", run) for run in left), ("run", str(APP)))
        for answer in answers[: len(registrations)]:
            if not answer["success"] and "already in use" not in str(answer).lower():
                raise NetworkError(f"The SuperLink refused a client's public key; {says_why(self._log)}.")
        ready()
        token = self._runtime.acquire() if started["success"] else None
        if token is None:
            raise NetworkError(f"The SuperLink gave no task for a new run; {says_why(self._log)}.")
        with self._runtime.task(token, ended=self._stop) as client:
            task = ask(client.PullTaskInput)
            # Messages take the sender from here, as in a process that Flower starts.
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            grid = grid_of(self.address, certificates=self._certificates, token=token, run_id=task.run.run_id)
            context = Context(task.run.run_id, task.context.node_id, {}, RecordDict(), {})
            threading.Thread(target=self._watch, daemon=True).start()
            try:
                app(grid=grid, context=context)
            except BaseException as error:
                over = self._over(error)
                if over is None:
                    raise
                raise NetworkError(
                    f"{over}; the last checkpoint is kept: start again ({says_why(self._log)})."
                ) from None
            finally:
                grid.close()

    def close(self) -> None:
        """End it."""
        self._closing = True
        stop(self._process)

    def _over(self, error: BaseException) -> str | None:
        """What ended the run, if it was neither a person here nor the training itself."""
        if isinstance(error, KeyboardInterrupt) and self._process.poll() is not None:
            return "The SuperLink ended"
        # Flower's own answers to a run that was stopped: an interruption after a refused request, or these.
        refused = isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, httpx.HTTPError)
        flowers = isinstance(error, httpx.HTTPError) or type(error).__module__.startswith("flwr.")
        return "Flower's run was stopped, as by `flwr stop`" if self._stopped or refused or flowers else None

    def _stop(self) -> None:
        """Wake the main thread: Flower says that this run is over."""
        self._stopped = True
        signal.raise_signal(signal.SIGINT)

    def _flwr(self, *commands: Sequence[str]) -> list[dict[str, Any]]:
        return flwr(*commands, home=self._home, log=self._log, secret=self.secret)

    def _unfinished(self) -> list[str]:
        """The runs that an earlier process left behind."""
        (listed,) = self._flwr(("list",))
        return [run["run-id"] for run in listed["runs"] if not run["status"].startswith("finished")]

    def _watch(self) -> None:
        """Wake the main thread if the SuperLink ends: Flower's grid would try to reach it for ever."""
        self._process.wait()
        if not self._closing:
            signal.raise_signal(signal.SIGINT)

    def _wait(self) -> None:
        host, port = self.address.split(":")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=START_SECONDS).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise NetworkError(f"The SuperLink did not start; {says_why(self._log)}.") from None
                time.sleep(0.1)

    def _check_secret(self, ca: Path) -> None:
        """Make sure that the SuperLink asks for the secret: another release of Flower might not."""
        trust = ssl.create_default_context(cafile=ca)
        address = f"https://{self.address}/v1/control/list-runs"
        with httpx.Client(verify=trust, trust_env=False, timeout=START_SECONDS) as client:
            if client.post(address).status_code != httpx.codes.FORBIDDEN:
                raise NetworkError(
                    "This release of Flower lets anybody on this machine end the training; install the "
                    "release that Sigil asks for."
                )

    def _name_connection(self, ca: Path) -> None:
        """Tell the command ``flwr`` where the SuperLink is."""
        self._home.mkdir(exist_ok=True)
        lines = [
            "[superlink]",
            'default = "sigil"',
            "[superlink.sigil]",
            f"address = {json.dumps(self.address)}",
            f"root-certificates = {json.dumps(str(ca.resolve()))}",
        ]
        files.write(self._home / "config.toml", "\n".join(lines) + "\n", replace=True, raises=NetworkError)
