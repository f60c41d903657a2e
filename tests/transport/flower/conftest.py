"""What every process has that does a task of Flower's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture
def identity() -> Iterator[None]:
    """The sender of messages, as in a process that does a task."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 2, 3
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None
