"""`sigil join`: a client's side of a training across machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sigil import extras
from sigil.cli.terminal import show_log
from sigil.errors import NetworkError


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` command."""
    app.command("join")(join)


def join(
    bundle: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that the owner handed over.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="SIGIL_DATA", help="Where this client's data sets are."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This client's data set, if not the owner's: folder:PATH."),
    ] = None,
    part: Annotated[
        int | None,
        typer.Option(metavar="I", min=0, help="Train on part I of the agreed partition, not on all data."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the owner listens, if not as FOLDER says (a tunnel)."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, mps.")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Take part in a training with this machine's own data.

    Images and labels stay here. The client connects to the owner, trains
    when it is asked to, and ends when the training is over; if it is stopped
    or loses the connection, the same command goes on.

    \b
    Examples:
      sigil join runs/run.network/clients/0000
      sigil join bundle --data-dir ~/data
      sigil join bundle --data folder:/srv/pictures
      sigil join runs/run.network/clients/0003 --part 3
    """
    extras.need("network")
    from sigil.transport.flower import processes

    bundle = bundle.resolve()
    invitation = _read(bundle / "join.json")
    processes.quiet(bundle / "flower")
    from sigil.transport.flower import client_app
    from sigil.transport.flower.supernode import SuperNode

    config: dict[str, str | int] = {"bundle": str(bundle), "device": device}
    if data_dir is not None:
        config["data-dir"] = str(data_dir.resolve())
    if data is not None:
        config["data"] = data
    if part is not None:
        config["part"] = part
    if server is not None:
        client_app.split_address(server)
        config["server"] = server
    show_log(quiet)
    if not quiet:
        typer.echo(f"Joining {server or invitation['server']} as client {invitation['client']}.")
    with SuperNode(
        bundle,
        address=server or invitation["server"],
        ca=bundle / "ca.pem",
        private_key=bundle / "node.key",
        node_id=invitation["node"],
        config=config,
    ) as node:
        node.work(client_app.app, finished=client_app.finished.is_set)
    if not quiet:
        typer.echo("The training is over.")


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        node = found["node"]
        return {
            "client": int(found["client"]),
            "server": str(found["server"]),
            "node": None if node is None else int(node),
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise NetworkError(
            f"{file.parent} is not a client's folder; give the one that the owner's `sigil serve` made."
        ) from None
