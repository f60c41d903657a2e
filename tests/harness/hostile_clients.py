"""Clients with a valid certificate that take part as agreed and answer as they like.

``python -m harness.hostile_clients KIND FOLDER …`` is ``sigil join FOLDER …``, except in what the kind does:

=============  ==============================================================================
kind           after each round
=============  ==============================================================================
heavy:BYTES    its answer has one more record of this many bytes
silent         announces its answer, and never sends it
slow:SECONDS   sends its answer, each object after this many seconds
hollow         sends its answer without the objects that it is made of
stray          sends messages of its own making to the owner before its answer
=============  ==============================================================================
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import wraps
from typing import Any

import httpx
import numpy as np


def change_pushes(kind: str, value: str) -> None:
    """Let this process push in another way than Flower's own client of the Fleet API."""
    from flwr.supernode.fleet_http_client import FleetHttpClient

    push_object, push_messages = FleetHttpClient.PushObject, FleetHttpClient.PushMessages

    def late(self: Any, request: Any) -> Any:
        time.sleep(float(value) if value else 100_000)
        return push_object(self, request)

    @wraps(push_messages)
    def hollow(self: Any, request: Any) -> Any:
        # The message is called what one of its parts is called, and is said to have no others.
        tree = request.message_object_trees[0]
        part = tree.children[0].object_id
        request.messages_list[0].metadata.message_id = part
        del tree.children[:]
        tree.object_id = part
        return push_messages(self, request)

    @wraps(push_messages)
    def stray(self: Any, request: Any) -> Any:
        own = type(request)()
        own.CopyFrom(request)
        metadata = own.messages_list[0].metadata
        metadata.reply_to_message_id, metadata.dst_node_id, metadata.src_node_id = "", 1, 1
        with suppress(httpx.HTTPError):
            push_messages(self, own)
        return push_messages(self, request)

    ways = {"silent": ("PushObject", late), "slow": ("PushObject", late)}
    ways |= {"hollow": ("PushMessages", hollow), "stray": ("PushMessages", stray)}
    setattr(FleetHttpClient, *ways[kind])


def main(kind: str, *arguments: str) -> int:
    """Join, as this kind of client."""
    from flwr.app import Array, ArrayRecord

    from sigil.cli.main import main as sigil
    from sigil.transport.flower import messages

    kind, _, value = kind.partition(":")
    if kind == "heavy":
        write = messages.write_update
        load = np.frombuffer(os.urandom(int(value)), np.uint8)

        def heavier(*given: Any, **named: Any) -> Any:
            answer = write(*given, **named)
            answer.content["load"] = ArrayRecord({"load": Array(load)})
            return answer

        messages.write_update = heavier
    else:
        change_pushes(kind, value)
    return sigil(["join", *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
