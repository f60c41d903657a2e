"""A client's node: asks the owner for messages through Flower's Fleet API, and answers them in this process.

It shows the owner's HTTPS front the client's certificate, which Flower's own SuperNode cannot, signs its
requests with the same key as a SuperNode does, and tells a person whether the owner is there.
"""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.clientapp import ClientApp

from sigil.errors import NetworkError, reason, shown
from sigil.serving import Closing
from sigil.transport.certificates import SERVER_NAME, ClientCredentials
from sigil.transport.flower.adapter import NodeTask, ask, fleet_client
from sigil.transport.flower.bundle import public_key
from sigil.transport.flower.messages import write_failure

log = logging.getLogger("sigil.transport")

POLL_SECONDS = 1.0
# How often the owner hears that the client is there. Flower gives a client up after two intervals, of which
# this is the shortest, and lets no other process take its place before.
HEARTBEAT_SECONDS, HEARTBEAT_INTERVAL = 3.0, 10.0
CONNECT_SECONDS, ANSWER_SECONDS, LEAVE_SECONDS = 10.0, 60.0, 3.0
# An owner that is away, or refuses, is mentioned at once and then this often.
REMIND_SECONDS = 30.0
# The front's or the SuperLink's answers after which asking again makes sense.
_PASSING = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)

Result = TypeVar("Result")


class Node(Closing):
    """The client whose credentials are in `folder`, at the front at `server` ("host:port")."""

    def __init__(self, folder: Path, server: str, *, config: Mapping[str, str | int]) -> None:
        credentials = ClientCredentials.load(folder)  # with a sentence for what is missing or expired
        key = load_pem_private_key(credentials.key, None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise NetworkError(
                "The client's key is of another kind than agreed; ask the owner for a new folder."
            )
        try:
            trust = ssl.create_default_context(cafile=folder / "ca.pem")
            trust.load_cert_chain(folder / "client.pem", folder / "client.key")
        except (OSError, ssl.SSLError) as error:
            raise NetworkError(f"The certificates in {folder} cannot be used: {reason(error)}.") from None
        self._server = server
        self._config = config
        self._public_key = public_key(folder)
        self._closing = threading.Event()
        self._node = 0  # the number under which Flower knows this client, once it has said so
        self._lock = threading.Lock()
        self._away: float | None = None  # since when the owner has not answered
        self._told = -math.inf
        self._fleet = fleet_client(
            server,
            trust=trust,
            name=SERVER_NAME,
            key=key,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            retry=self,
        )

    def work(self, app: ClientApp, *, finished: Callable[[], bool]) -> None:
        """Let `app` answer one message after another, until `finished`."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        while not finished():
            try:
                if not self._node:
                    self._node = ask(
                        self._fleet.ActivateNode,
                        public_key=self._public_key,
                        heartbeat_interval=HEARTBEAT_INTERVAL,
                    ).node_id
                arrived = ask(self._fleet.PullMessages, node={"node_id": self._node})
                if arrived.messages_list:
                    self._answer(app, NodeTask(self._fleet, self._node, arrived))
                else:
                    self._closing.wait(POLL_SECONDS)
            except httpx.HTTPStatusError as error:
                self._node = 0
                if error.response.status_code == httpx.codes.PRECONDITION_FAILED:
                    self._remind("Waiting until the owner misses the process that ran as this client before.")
                else:
                    answer = f"{error.response.status_code} {shown(error.response.text)}"
                    self._remind("The owner refuses this client: %s. Trying again.", answer)
                self._closing.wait(POLL_SECONDS)
            except Exception as error:
                # Whatever it is that was lost, the owner will ask again, and this client must be there.
                log.warning("A task could not be delivered: %s", type(error).__name__)
                self._closing.wait(POLL_SECONDS)

    def close(self) -> None:
        """Tell the owner that the client leaves, and close all connections."""
        self._closing.set()
        self._fleet._client.timeout = LEAVE_SECONDS
        if self._node:
            with suppress(httpx.HTTPError):
                ask(self._fleet.DeactivateNode, node_id=self._node)
        self._fleet.close()

    def invoke(self, send: Callable[[], Result]) -> Result:
        """Send a request until somebody answers it, or this is closed: an owner may be away for hours."""
        while True:
            try:
                answer = send()
                self._tell_back()
                return answer
            except httpx.TransportError as error:
                if self._closing.is_set():
                    raise
                self._tell_away(error)
            except httpx.HTTPStatusError as error:
                if self._closing.is_set() or error.response.status_code not in _PASSING:
                    raise
            self._closing.wait(POLL_SECONDS)

    def _answer(self, app: ClientApp, task: NodeTask) -> None:
        message, context = task.read()
        context.node_config.update(self._config)
        try:
            reply = app(message=message, context=context)
        except Exception as error:
            # Anything: the owner must hear that this client has no answer, or it would wait for one.
            log.warning("This round is not finished here: %s. Waiting to be asked again.", reason(error))
            reply = write_failure(error, reply_to=message)
        task.answer(reply, context)

    def _beat(self) -> None:
        """Let the owner hear of this client also while it trains."""
        while not self._closing.wait(HEARTBEAT_SECONDS):
            with suppress(Exception):  # the next one may get through
                node = {"node_id": self._node}
                if (
                    self._node
                    and not ask(
                        self._fleet.SendNodeHeartbeat, node=node, heartbeat_interval=HEARTBEAT_INTERVAL
                    ).success
                ):
                    self._node = 0

    def _tell_away(self, error: httpx.TransportError) -> None:
        cause: BaseException = error
        while (
            cause.__context__ is not None
        ):  # httpx raises its own from httpcore's, and that from the system's
            cause = cause.__context__
        why = reason(cause) if isinstance(cause, OSError) else "no answer in time"
        if isinstance(cause, ssl.SSLError):
            self._remind(
                "%s answers, but not as the owner of this folder (%s); ask the owner for a new folder, or "
                "look at --server. Trying again.",
                *(self._server, why),
            )
        # A connection that breaks later is opened again: only then is it known whether the owner is there.
        elif isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            self._remind(
                "Waiting for the owner at %s (%s). Trying again until it is there.", self._server, why
            )

    def _remind(self, sentence: str, *values: str) -> None:
        now = time.monotonic()
        with self._lock:
            if self._away is None:
                self._away = now
            if now - self._told >= REMIND_SECONDS:
                self._told = now
                log.warning(sentence, *values)

    def _tell_back(self) -> None:
        with self._lock:
            if self._away is not None:
                log.warning("The owner is there, after %.0f seconds.", time.monotonic() - self._away)
                self._away, self._told = None, -math.inf
