"""Everything of Flower that is neither its public interface nor one of its commands, in one place.

Sigil does the tasks of a SuperLink and a SuperNode in its own processes (:mod:`sigil.transport.flower.tasks`
says why), and Flower's public interface, ``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and
``flwr.simulation``, has nothing for that. What a command can do is left to it: starting both, registering
nodes, starting and ending runs (:mod:`sigil.transport.flower.processes`). A release of Flower may move or
change any of these names: then this module changes, and its contract test
(``tests/transport/flower/test_adapter.py``) says which ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

__all__ = [
    "HttpGrid",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SuperExecAuthHttpInterceptor",
    "TaskIdentity",
    "ask",
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
