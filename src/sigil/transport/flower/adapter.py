"""Everything of Flower that is not its public interface, in one place.

Sigil does the tasks of a SuperLink and a SuperNode in its own processes (:mod:`sigil.transport.flower.tasks`
says why), and Flower's public interface, ``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and
``flwr.simulation``, has nothing for that. A release of Flower may move or change any of these names: then
this module changes, and its contract test (``tests/transport/flower/test_adapter.py``) says which ones.
"""

from __future__ import annotations

from flwr.app.user_config import UserConfig
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

__all__ = [
    "AcquireTaskRequest",
    "ControlHttpClient",
    "DeactivateNodeRequest",
    "ErrorCode",
    "Fab",
    "FleetHttpClient",
    "HeartbeatSender",
    "HttpGrid",
    "ListNodesRequest",
    "ListRunsRequest",
    "NodeAuthHttpInterceptor",
    "PullTaskInputRequest",
    "PushTaskOutputRequest",
    "RegisterNodeRequest",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "StartRunRequest",
    "Status",
    "StopRunRequest",
    "SubStatus",
    "SuperExecAuthHttpInterceptor",
    "TaskIdentity",
    "TaskType",
    "UserConfig",
    "build_fab_from_disk",
    "context_from_proto",
    "fab_to_proto",
    "make_task_heartbeat_fn_http",
    "pull_task_input",
    "push_message",
    "run_from_proto",
]
