"""How a process of ours takes a task of Flower's and does it.

Flower normally starts a process for each task: the ServerApp of a run, the ClientApp for a message. With
``--isolation process`` it leaves that to somebody else who knows a shared secret. Here that somebody is the
process of ``sigil serve`` or ``sigil join`` itself:

- the owner's key stays in the one process that the owner started;
- a client executes the Sigil that it installed, never code from the network;
- a round does not begin with seconds of imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx

from sigil.transport.flower.adapter import (
    AcquireTaskRequest,
    HeartbeatSender,
    PushTaskOutputRequest,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SubStatus,
    SuperExecAuthHttpInterceptor,
    TaskType,
    make_task_heartbeat_fn_http,
)

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


@dataclass(frozen=True)
class Runtime:
    """Where a SuperLink or SuperNode hands out tasks, and what it takes to get one."""

    address: str
    secret: bytes
    certificates: bytes | None = None

    def connect(self, token: str | None = None) -> RuntimeHttpClient:
        """A client of the Runtime API: for one task if given its token, else for taking tasks."""
        own = (
            SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=frozenset({_ACQUIRE}))
            if token is None
            else RuntimeTokenHttpInterceptor(token)
        )
        return RuntimeHttpClient.from_server_address(
            self.address,
            insecure=self.certificates is None,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), own],
        )

    def acquire(self, kind: TaskType) -> str | None:
        """The token of a task of this kind that waits to be done, or None."""
        client = self.connect()
        try:
            answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        finally:
            client.close()
        return answer.token or None

    @contextmanager
    def task(self, token: str) -> Iterator[RuntimeHttpClient]:
        """Do a task: Flower hears all the time that it is alive, and in the end how it went."""
        client = self.connect(token)
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        outcome = PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="It was interrupted.")
        try:
            yield client
            outcome = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED)
        finally:
            heartbeat.stop()
            with suppress(httpx.HTTPError):
                client.PushTaskOutput(outcome)
            client.close()
