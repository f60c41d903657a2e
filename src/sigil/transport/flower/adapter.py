"""Everything of Flower that is neither its public interface nor one of its commands, in one place.

Flower has a process for each part: a SuperNode at the client, and one for each task, the ServerApp of a run
or the ClientApp for a message. Here the process of ``sigil serve`` does the task of its own SuperLink
(:class:`Runtime`), and the process of ``sigil join`` is its own SuperNode (:func:`fleet_client`):

- the owner's key stays in the one process that the owner started;
- a client executes the Sigil that it installed, never code from the network, and shows its certificate;
- a round does not begin with seconds of imports.

And Flower's public interface, ``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and
``flwr.simulation``, has nothing for that. What a command can do is left to it: starting a SuperLink,
registering nodes, starting and ending runs (:mod:`sigil.transport.flower.superlink`). A release of Flower may
move or change any of these names: then this module changes, and its contract test
(``tests/transport/flower/test_adapter.py``) says which ones.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_connection import (  # type: ignore[attr-defined]
    FleetHttpClient,
    NodeAuthHttpInterceptor,
)
from flwr.supernode.runtime.run_clientapp import (  # type: ignore[attr-defined]
    TaskIdentity,
    pull_task_input,
    push_message,
)

if TYPE_CHECKING:
    import flwr.app
    from flwr.superlink.grid import HttpGrid

__all__ = [
    "FleetHttpClient",
    "HttpGrid",
    "NodeAuthHttpInterceptor",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SuperExecAuthHttpInterceptor",
    "TaskIdentity",
    "ask",
    "fleet_client",
    "grid_of",
    "pull_task_input",
    "push_message",
]


def __getattr__(name: str) -> Any:
    """HttpGrid when it is first used: it brings the SuperLink's database, which a client never opens."""
    if name == "HttpGrid":
        from flwr.superlink.grid import HttpGrid

        return HttpGrid
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def ask(method: Callable[[Any], Any], **fields: Any) -> Any:
    """Call a method of Flower's clients: what its request is called, the method itself says."""
    return method(get_type_hints(method)["request"](**fields))


def grid_of(address: str, *, certificates: bytes, token: str, run_id: int) -> HttpGrid:
    """A grid that carries the messages of this run."""
    from flwr.superlink.grid import HttpGrid

    grid = HttpGrid(address, root_certificates=certificates, token=token)
    run = get_type_hints(grid.set_run)["run"]
    grid.set_run(run.create_empty(run_id))  # nothing but its number is asked of it
    return grid


# The kind of a task and the two ways in which it ends, as they are called on the line.
SERVER_APP: Final = "flwr-serverapp"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
# Flower takes a task for dead after a minute without a sign of life.
HEARTBEAT_SECONDS: Final = 15.0

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


@dataclass(frozen=True)
class Runtime:
    """Where a SuperLink hands out tasks, and what it takes to get one."""

    address: str
    secret: bytes
    certificates: bytes

    def connect(self, token: str | None = None) -> RuntimeHttpClient:
        """A client of the Runtime API: for one task if given its token, else for taking tasks."""
        authentication = (
            SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=frozenset({_ACQUIRE}))
            if token is None
            else RuntimeTokenHttpInterceptor(token)
        )
        return RuntimeHttpClient.from_server_address(
            self.address,
            insecure=False,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), authentication],
        )

    def acquire(self) -> str | None:
        """The token of a ServerApp's task that waits to be done, or None."""
        with self.connect() as client:
            token: str = ask(client.AcquireTask, supported_task_types=[SERVER_APP]).token
        return token or None

    @contextmanager
    def task(self, token: str, *, ended: Callable[[], object]) -> Iterator[RuntimeHttpClient]:
        """Do a task: Flower hears all the time that it is alive, and in the end how it went.

        `ended` is called, on another thread, if Flower has ended the task meanwhile.
        """
        done = threading.Event()
        outcome = {"sub_status": FAILED, "details": "It was interrupted."}
        with self.connect(token) as client:
            heart = threading.Thread(target=_beat, args=(client, done, ended), daemon=True)
            heart.start()
            try:
                yield client
                outcome = {"sub_status": COMPLETED}
            finally:
                done.set()
                heart.join()
                with suppress(httpx.HTTPError):
                    ask(client.PushTaskOutput, **outcome)


def _beat(client: RuntimeHttpClient, done: threading.Event, ended: Callable[[], object]) -> None:
    while True:
        with suppress(httpx.HTTPError):  # the next one may get through
            if not ask(client.SendTaskHeartbeat).success:
                ended()
                return
        if done.wait(HEARTBEAT_SECONDS):
            return


def fleet_client(
    address: str,
    *,
    trust: ssl.SSLContext,
    name: str,
    key: EllipticCurvePrivateKey,
    timeout: httpx.Timeout,
    retry: Any,
) -> FleetHttpClient:
    """A client of the Fleet API at `address`, whose certificate is for `name`; `key` signs each request.

    `retry` is asked to ``invoke`` what sends a request. Unlike Flower's own client, this one heeds neither
    proxies of the environment nor redirections.
    """

    def expect(request: httpx.Request) -> None:
        request.extensions["sni_hostname"] = name

    client = FleetHttpClient(
        f"https://{address}",
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
            _ContentAlone(),
        ],
        verify=trust,
        retry_invoker=retry,
    )
    client.close()
    client._client = httpx.Client(
        verify=trust, timeout=timeout, trust_env=False, event_hooks={"request": [expect]}
    )
    return client


class _ContentAlone:
    """Keeps the head of an answer from Flower, which prints parts of it, and ends the process for others."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        answer = call_next(context)
        answer.raise_for_status()
        return httpx.Response(answer.status_code, content=answer.content, request=context.request)


class NodeTask:
    """A message that came to a node, for Flower's functions that read and answer one in a task's process.

    It stands in the place of their client of a SuperNode's Runtime API, and asks the Fleet API.
    """

    def __init__(self, fleet: FleetHttpClient, node: int, arrived: Any) -> None:
        self._fleet, self._node, self._arrived = fleet, node, arrived

    def read(self) -> tuple[flwr.app.Message, flwr.app.Context]:
        """The message, with all its objects, and an empty context to answer it in."""
        client: Any = self
        message, context, _, _ = pull_task_input(client)
        return message, context

    def answer(self, reply: flwr.app.Message, context: flwr.app.Context) -> None:
        """Send this reply with all its objects."""
        client: Any = self
        push_message(client, reply, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def PullTaskInput(self, request: Any) -> Any:
        run = self._arrived.messages_list[0].metadata.run_id
        answer = get_type_hints(RuntimeHttpClient.PullTaskInput)["return"]
        return answer(task_id=1, context={"run_id": run, "node_id": self._node}, run={"run_id": run})

    def PullMessages(self, request: Any) -> Any:
        return self._arrived

    def PushMessages(self, request: Any) -> Any:
        return ask(
            self._fleet.PushMessages,
            node={"node_id": self._node},
            messages_list=request.messages_list,
            message_object_trees=request.message_object_trees,
            clientapp_runtime_list=[0.0],
        )
