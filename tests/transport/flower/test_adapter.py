"""The contract with Flower: every private name that Sigil uses, and nowhere but in the adapter."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from contextlib import suppress
from importlib.metadata import EntryPoint, requires, version
from pathlib import Path
from typing import get_type_hints

import pytest

import sigil
from sigil.transport.flower import adapter, messages, node, processes

# Where each name comes from, and what Sigil calls it with or asks of it.
CONTRACT: dict[str, dict[str, tuple[str, ...]]] = {
    "flwr.supercore.interceptors": {
        "RuntimeTokenHttpInterceptor": (),
        "RuntimeVersionHttpInterceptor": ("component_name",),
        "SuperExecAuthHttpInterceptor": ("master_secret", "protected_methods"),
    },
    "flwr.supercore.runtime": {
        "RuntimeHttpClient": (
            "AcquireTask", "PullTaskInput", "PushTaskOutput", "SendTaskHeartbeat", "close",
            "from_server_address", "PullMessages", "PullObject", "ConfirmMessageReceived",
        )
    },
    "flwr.superlink.grid": {
        "HttpGrid": (
            "set_run", "run", "close", "get_nodes", "push_messages", "pull_messages", "_runtime_client",
        )
    },
    "flwr.supernode.fleet_http_connection": {
        "FleetHttpClient": (
            "ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages", "PushMessages",
            "PullObject", "PushObject", "ConfirmMessageReceived", "close", "interceptors", "verify",
            "retry_invoker",
        ),
        "NodeAuthHttpInterceptor": ("private_key", "public_key"),
    },
    "flwr.supernode.runtime.run_clientapp": {
        "TaskIdentity": ("task_id", "run_id", "node_id"),
        "pull_task_input": ("client",),
        "push_message": ("client", "message", "context"),
    },
}  # fmt: skip
# The fields of what is asked with those methods, and of what they answer.
FIELDS: dict[str, dict[str, tuple[set[str], set[str]]]] = {
    "RuntimeHttpClient": {
        "AcquireTask": ({"supported_task_types"}, {"token"}),
        "PullTaskInput": (set(), {"task_id", "run", "context"}),
        "PushTaskOutput": ({"sub_status", "details"}, set()),
        "SendTaskHeartbeat": (set(), {"success"}),
        "PullMessages": ({"message_ids"}, {"messages_list", "message_object_trees"}),
        "PullObject": (
            {"node", "run_id", "object_id"},
            {"object_found", "object_available", "object_content"},
        ),
    },
    "FleetHttpClient": {
        "ActivateNode": ({"public_key", "heartbeat_interval"}, {"node_id"}),
        "DeactivateNode": ({"node_id"}, set()),
        "SendNodeHeartbeat": ({"node", "heartbeat_interval"}, {"success"}),
        "PullMessages": ({"node"}, {"messages_list", "message_object_trees"}),
        "PushMessages": (
            {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"},
            {"objects_to_push", "session_id"},
        ),
    },
}
# The commands, with the words and options that Sigil gives them.
COMMANDS = {
    "flower-superlink": (
        "--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--isolation", "--host", "--port",
        "--database", "--enable-supernode-auth", "--superexec-auth-secret-file",
        "--disable-runtime-dependency-installation",
    ),
    "flwr list": ("--format",),
    "flwr stop": ("--format",),
    "flwr run": ("--format",),
    "flwr supernode register": ("--format",),
}  # fmt: skip
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


def test_at_most_five_modules_are_private() -> None:
    assert len(CONTRACT) <= 5
    source = Path(adapter.__file__).read_text("utf-8")
    assert set(re.findall(r"^\s*from (flwr[\w.]*) import", source, re.MULTILINE)) == set(CONTRACT)
    ours = {"ask", "fleet_client", "grid_of"}
    assert set(adapter.__all__) - ours == {name for names in CONTRACT.values() for name in names}


@pytest.mark.parametrize(
    ("client", "method"), [(client, method) for client, methods in FIELDS.items() for method in methods]
)
def test_requests_and_answers_have_the_fields_that_are_used(client: str, method: str) -> None:
    hints = get_type_hints(getattr(getattr(adapter, client), method))
    asked, answered = FIELDS[client][method]
    assert asked <= known(hints["request"])
    assert answered <= known(hints["return"])


def test_kinds_of_tasks_and_their_ends_are_called_as_on_the_line() -> None:
    constant = importlib.import_module("flwr.common.constant")
    assert (adapter.COMPLETED, adapter.FAILED) == (constant.SubStatus.COMPLETED, constant.SubStatus.FAILED)
    kinds = importlib.import_module("flwr.supercore.constant").TaskType
    assert adapter.SERVER_APP == kinds.SERVER_APP
    patience = constant.HEARTBEAT_DEFAULT_INTERVAL * constant.HEARTBEAT_PATIENCE
    assert patience >= 3 * adapter.HEARTBEAT_SECONDS
    assert constant.HEARTBEAT_MIN_INTERVAL == node.HEARTBEAT_INTERVAL
    assert constant.HEARTBEAT_PATIENCE == 2
    assert messages.FAILED == constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def test_a_grid_knows_its_run() -> None:
    grid = adapter.grid_of("127.0.0.1:1", certificates=b"", token="t", run_id=17)
    assert grid.run.run_id == 17
    assert grid.node.node_id
    # What sigil.transport.flower.messenger puts in the place of its client is what the grid asks.
    grid._client = stand_in = object()
    assert grid._runtime_client is stand_in


@pytest.mark.parametrize("command", COMMANDS)
def test_flower_has_the_commands_and_options_that_are_used(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *words = command.split()
    begin = EntryPoint(name, processes.entry(name), "").load()
    monkeypatch.setattr(sys, "argv", [name, *words, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        begin()
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert all(option in printed for option in COMMANDS[command])


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
