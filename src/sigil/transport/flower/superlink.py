"""The owner's SuperLink: on the loopback address only, with its nodes, its run and its ServerApp."""

from __future__ import annotations

import hashlib
import secrets
import signal
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from flwr.serverapp import ServerApp

from sigil import files
from sigil.errors import NetworkError
from sigil.transport.flower.adapter import (
    ControlHttpClient,
    Fab,
    HttpGrid,
    ListNodesRequest,
    ListRunsRequest,
    PullTaskInputRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    Status,
    StopRunRequest,
    TaskIdentity,
    TaskType,
    build_fab_from_disk,
    context_from_proto,
    fab_to_proto,
    run_from_proto,
)
from sigil.transport.flower.processes import free_port, start, stop
from sigil.transport.flower.tasks import Runtime

APP = Path(__file__).parent / "app"
START_SECONDS = 600.0


class SuperLink:
    """A SuperLink that lives as long as this object or this process, whichever ends first.

    What it knows (nodes and their public keys) is in ``superlink.db`` in `folder`, so that clients which
    were connected to it find themselves known again after any restart.
    """

    def __init__(self, folder: Path, *, ca: Path, certificate: Path, key: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._log = folder / "superlink.log"
        self._closing = False
        self._certificates = ca.read_bytes()
        secret = folder / "tasks.secret"
        files.write(secret, secrets.token_bytes(32), replace=True, mode=0o600, raises=NetworkError)
        self._runtime = Runtime(self.address, secret.read_bytes(), self._certificates)
        host, port = self.address.split(":")
        self._process = start(
            "flower-superlink",
            [
                *(
                    "--ssl-ca-certfile",
                    str(ca),
                    "--ssl-certfile",
                    str(certificate),
                    "--ssl-keyfile",
                    str(key),
                ),
                *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
                *("--host", host, "--port", port, "--database", str(folder / "superlink.db")),
                *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            ],
            log=self._log,
        )
        try:
            self._control = ControlHttpClient.from_server_address(
                self.address,
                insecure=False,
                root_certificates=self._certificates,
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            )
            self._wait()
        except BaseException:
            # Nobody has this object yet, so nobody else could end what was started.
            stop(self._process)
            raise

    def register(self, public_key: bytes) -> int:
        """The number by which Flower knows the node with this public key (PEM), registered if it is new."""
        for node in self._control.ListNodes(ListNodesRequest()).nodes_info:
            if node.public_key == public_key:
                return node.node_id
        return self._control.RegisterNode(RegisterNodeRequest(public_key=public_key)).node_id

    def run(self, app: ServerApp) -> None:
        """Do a run of `app` in this process, after ending those that an earlier process left behind."""
        for left in self._control.ListRuns(ListRunsRequest()).run_dict.values():
            if left.status.status != Status.FINISHED:
                self._control.StopRun(StopRunRequest(run_id=left.run_id))
        bundle = build_fab_from_disk(APP)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        self._control.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
        token = self._runtime.acquire(TaskType.SERVER_APP)
        if token is None:
            raise NetworkError(f"The SuperLink gave no task for a new run; {self._log} says why.")
        with self._runtime.task(token) as client:
            task = client.PullTaskInput(PullTaskInputRequest())
            # Messages take the sender from here, as in a process that Flower starts.
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            grid = HttpGrid(self.address, root_certificates=self._certificates, token=token)
            grid.set_run(run_from_proto(task.run))
            threading.Thread(target=self._watch, daemon=True).start()
            try:
                app(grid=grid, context=context_from_proto(task.context))
            except KeyboardInterrupt:
                if self._process.poll() is None:
                    raise
                raise NetworkError(
                    f"The SuperLink ended ({self._log} says why); the last checkpoint is kept: start again."
                ) from None
            finally:
                grid.close()

    def close(self) -> None:
        """End it."""
        self._closing = True
        self._control.close()
        stop(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        """Wake the main thread if the SuperLink ends: Flower's grid would try to reach it for ever."""
        self._process.wait()
        if not self._closing:
            signal.raise_signal(signal.SIGINT)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._control.ListNodes(ListNodesRequest())
                return
            except httpx.TransportError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise NetworkError(f"The SuperLink did not start; {self._log} says why.") from None
                time.sleep(0.1)
