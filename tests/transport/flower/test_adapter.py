"""The contract with Flower: every private name that Sigil uses, and nowhere but in the adapter."""

from __future__ import annotations

import importlib
import inspect
import re
from contextlib import suppress
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import sigil
from sigil.transport.flower import adapter, processes

# Where each name comes from, and what Sigil calls it with or asks of it.
CONTRACT: dict[str, dict[str, tuple[str, ...]]] = {
    "flwr.app.user_config": {"UserConfig": ()},
    "flwr.cli.build": {"build_fab_from_disk": ()},
    "flwr.common.constant": {
        "ErrorCode": ("NODE_UNAVAILABLE", "CLIENT_APP_RAISED_EXCEPTION"),
        "Status": ("FINISHED",),
        "SubStatus": ("COMPLETED", "FAILED"),
    },
    "flwr.common.serde": {"context_from_proto": (), "fab_to_proto": (), "run_from_proto": ()},
    "flwr.proto.control_pb2": {
        "ListNodesRequest": (),
        "ListRunsRequest": (),
        "RegisterNodeRequest": ("public_key",),
        "StartRunRequest": ("fab",),
        "StopRunRequest": ("run_id",),
    },
    "flwr.proto.fleet_pb2": {"DeactivateNodeRequest": ("node_id",)},
    "flwr.proto.runtime_pb2": {
        "AcquireTaskRequest": ("supported_task_types",),
        "PullTaskInputRequest": (),
        "PushTaskOutputRequest": ("sub_status", "details"),
    },
    "flwr.supercore.constant": {"TaskType": ("SERVER_APP", "CLIENT_APP")},
    "flwr.supercore.control": {
        "ControlHttpClient": ("ListNodes", "ListRuns", "RegisterNode", "StartRun", "StopRun", "close")
    },
    "flwr.supercore.fab": {"Fab": ("hash_str", "content", "verifications")},
    "flwr.supercore.heartbeat": {
        "HeartbeatSender": ("start", "stop"),
        "make_task_heartbeat_fn_http": (),
    },
    "flwr.supercore.interceptors": {
        "RuntimeTokenHttpInterceptor": (),
        "RuntimeVersionHttpInterceptor": ("component_name",),
        "SuperExecAuthHttpInterceptor": ("master_secret", "protected_methods"),
    },
    "flwr.supercore.runtime": {
        "RuntimeHttpClient": ("AcquireTask", "PullTaskInput", "PushTaskOutput", "from_server_address")
    },
    "flwr.supercore.task_identity": {"TaskIdentity": ("task_id", "run_id", "node_id")},
    "flwr.superlink.grid": {"HttpGrid": ("set_run", "close", "get_nodes", "push_messages", "pull_messages")},
    "flwr.supernode.fleet_http_client": {"FleetHttpClient": ("DeactivateNode", "from_server_address")},
    "flwr.supernode.node_auth_http_interceptor": {"NodeAuthHttpInterceptor": ()},
    "flwr.supernode.runtime.run_clientapp": {"pull_task_input": (), "push_message": ()},
}
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}


def known(thing: object) -> set[str]:
    """What can be asked of a thing: attributes, fields of a message, parameters."""
    names = set(dir(thing)) | set(dir(type(thing)))  # and properties of a metaclass
    descriptor = getattr(thing, "DESCRIPTOR", None)
    if descriptor is not None:
        names |= {field.name for field in descriptor.fields}
    with suppress(TypeError, ValueError):
        names |= set(inspect.signature(thing).parameters)  # type: ignore[arg-type]
    return names | set(getattr(thing, "__annotations__", ()))


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in CONTRACT.items() for name in names]
)
def test_flower_has_what_the_adapter_takes(module: str, name: str) -> None:
    thing = getattr(importlib.import_module(module), name)
    assert getattr(adapter, name) is thing
    assert set(CONTRACT[module][name]) <= known(thing)


@pytest.mark.parametrize(("module", "function"), processes.COMMANDS.values())
def test_flower_has_the_commands_that_children_run(module: str, function: str) -> None:
    assert callable(getattr(importlib.import_module(module), function))


def test_the_contract_names_all_that_the_adapter_offers() -> None:
    assert set(adapter.__all__) == {name for names in CONTRACT.values() for name in names}


def test_private_parts_of_flower_are_imported_by_the_adapter_alone() -> None:
    package = Path(sigil.__file__).parent
    for file in package.rglob("*.py"):
        if file != Path(adapter.__file__):
            found = re.findall(
                r"^\s*(?:from|import) (flwr(?=[\s.])[\w.]*)", file.read_text("utf-8"), re.MULTILINE
            )
            assert set(found) <= PUBLIC, file


def test_the_installed_release_is_one_that_is_supported() -> None:
    wanted = next(line for line in requires("sigil-watermark") or () if re.match(r"flwr[<>=]", line))
    low, high = re.search(r">=([\d.]+)", wanted), re.search(r"<([\d.]+)", wanted)
    assert low is not None
    assert high is not None
    installed, lowest, beyond = (
        tuple(map(int, text.split(".")[:2])) for text in (version("flwr"), low[1], high[1])
    )
    assert lowest <= installed < beyond
