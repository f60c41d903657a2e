"""A client's SuperNode, and the loop that does its tasks in this process."""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
from flwr.clientapp import ClientApp

from sigil import files
from sigil.errors import NetworkError
from sigil.serving import Closing
from sigil.transport.flower.adapter import CLIENT_APP, Runtime, pull_task_input, push_message
from sigil.transport.flower.messages import write_failure
from sigil.transport.flower.processes import free_port, says_why, start, stop

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3
PAUSE_SECONDS = 3.0
# A SuperNode that ends again and again is mentioned at once and then this often.
REMIND_SECONDS = 30.0
_LONGEST = 500


class SuperNode(Closing):
    """A SuperNode that lives as long as this object or this process, and is started again if it ends.

    It authenticates with the key ``node.key`` in `folder` to the SuperLink behind `address`, whose
    certificate `ca` must have signed.
    """

    def __init__(self, folder: Path, *, address: str, ca: Path, config: Mapping[str, str | int]) -> None:
        self._log = folder / "supernode.log"
        self._address = address
        self._ca = ca
        self._private_key = folder / "node.key"
        self._config = config
        self._told = -math.inf
        self._secret = folder / "tasks.secret"
        # Replaced, not written through: the folder came from the owner, and the name might be a link.
        files.write(self._secret, secrets.token_bytes(32), replace=True, mode=0o600, raises=NetworkError)
        self._begin()

    def work(self, app: ClientApp, *, finished: Callable[[], bool]) -> None:
        """Let `app` answer one message after another in this process, until `finished`."""
        while not finished():
            if self._process.poll() is not None:
                self._tell_ended()
                time.sleep(PAUSE_SECONDS)
                self._begin()
            try:
                token = self._runtime.acquire(CLIENT_APP)
                if token is None:
                    time.sleep(POLL_SECONDS)
                else:
                    self._answer(app, token)
            except httpx.TransportError:
                time.sleep(POLL_SECONDS)  # the SuperNode is starting, or is gone
            except Exception as error:
                # Whatever it is that Flower lost, the owner will ask again, and this client must be there.
                log.warning("A task could not be delivered: %s", type(error).__name__)
                time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """End it; the SuperLink hears that the client has left."""
        stop(self._process)

    def _begin(self) -> None:
        address = f"127.0.0.1:{free_port()}"
        host, port = address.split(":")
        settings = " ".join(f"{name}={json.dumps(value)}" for name, value in self._config.items())
        self._runtime = Runtime(address, self._secret.read_bytes())
        self._process = start(
            "flower-supernode",
            [
                *("--superlink", self._address, "--root-certificates", str(self._ca)),
                *("--auth-supernode-private-key", str(self._private_key), "--node-config", settings),
                *("--isolation", "process", "--superexec-auth-secret-file", str(self._secret)),
                *("--host", host, "--port", port),
            ],
            log=self._log,
        )

    def _tell_ended(self) -> None:
        now = time.monotonic()
        if now - self._told >= REMIND_SECONDS:
            self._told = now
            log.warning("Flower's SuperNode ended and is started again; %s.", says_why(self._log))

    def _answer(self, app: ClientApp, token: str) -> None:
        with self._runtime.task(token) as client:
            message, context, _, _ = pull_task_input(client)
            try:
                reply = app(message=message, context=context)
            except Exception as error:
                # Anything: the owner must hear that this client has no answer, or it would wait for one.
                log.warning(
                    "This round is not finished here: %s Waiting to be asked again.", _sentence(error)
                )
                reply = write_failure(error, reply_to=message)
            push_message(client, reply, context)


def _sentence(error: Exception) -> str:
    # The owner may have written it.
    text = "".join(sign if sign.isprintable() else "?" for sign in str(error)[:_LONGEST])
    text = text.strip() or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
