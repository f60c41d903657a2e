"""The container files: what may see what, and that their commands are commands."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from sigil.cli.main import app

ROOT = Path(__file__).parents[1]
CLIENTS = ("client0", "client1", "client2")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return content


def mounted(service: dict[str, Any]) -> set[str]:
    return {volume.partition(":")[0] for volume in service["volumes"]}


def test_clients_share_a_network_with_the_server_and_with_nobody_else(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"prepare", "server", *CLIENTS}
    for one, other in itertools.combinations(CLIENTS, 2):
        assert not set(services[one]["networks"]) & set(services[other]["networks"])
    for client in CLIENTS:
        assert set(services[client]["networks"]) <= set(services["server"]["networks"])
    assert services["prepare"]["network_mode"] == "none"
    assert all(network["internal"] for network in compose["networks"].values())


def test_clients_see_their_own_folder_and_not_the_owners(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for number, client in enumerate(CLIENTS):
        assert mounted(services[client]) == {f"bundle{number}"}
    assert mounted(services["server"]) == {"owner"}
    assert set(compose["volumes"]) == set().union(*map(mounted, services.values()))


def test_no_container_has_rights_that_it_does_not_need(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"ports", "privileged", "cap_add", "user"} & service.keys()
    docker = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)$", docker, re.MULTILINE) == ["10001"]
    assert re.findall(r"^FROM (\S+)", docker, re.MULTILINE) == ["python:3.12-slim"] * 2


def test_every_command_is_one_of_ours(compose: dict[str, Any]) -> None:
    services = compose["services"]
    lines = [services[name]["command"] for name in ("server", *CLIENTS)]
    lines += re.findall(r"^sigil (.+)$", services["prepare"]["command"][0], re.MULTILINE)
    assert len(lines) == 5
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for line in lines:
        name, *arguments = shlex.split(line)
        known[name].make_context(name, arguments, resilient_parsing=False)


def test_the_image_holds_what_it_is_built_from() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
