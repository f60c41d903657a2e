"""`sigil join`: a client's side of a training across machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sigil import extras
from sigil.cli import outputs
from sigil.cli.interruption import Interrupted
from sigil.cli.run_options import Quiet
from sigil.cli.terminal import printable, show_log
from sigil.errors import DataError, NetworkError


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
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Go on in place of a process that runs as this client.")
    ] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, mps.")] = "auto",
    quiet: Quiet = False,
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
    outputs.check_there({"FOLDER": bundle})
    from sigil.transport.flower import processes
    from sigil.transport.flower.only_process import only_process

    bundle = bundle.resolve()
    invitation = _read(bundle / "join.json")
    clients = invitation["clients"]
    if part is not None and clients is not None and part >= clients:
        raise NetworkError(
            f"There is no part {part}: this training has {clients} clients, so --part is 0 to {clients - 1}, "
            f"and {invitation['client']} is the one that goes with this folder."
        )
    if data is not None and data.startswith("folder:"):
        _check_pictures(Path(data.removeprefix("folder:")))
    processes.quiet(bundle / "flower")
    from sigil.transport.flower import client_app
    from sigil.transport.flower.supernode import SuperNode
    from sigil.transport.flower.tunnel import Tunnel

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
    address = server or invitation["server"]
    try:
        with only_process(bundle, take_over=take_over), Tunnel(bundle, address) as tunnel:
            if not quiet:
                typer.echo(
                    f"Joining {printable(address)} as client {invitation['client']}; waiting for the owner "
                    "to begin a round."
                )
            with SuperNode(
                bundle,
                address=tunnel.address,
                ca=tunnel.ca,
                private_key=bundle / "node.key",
                config=config,
            ) as node:
                node.work(client_app.app, finished=client_app.finished.is_set)
    except KeyboardInterrupt:
        raise Interrupted(
            "Stopped. The same command goes on; a round that was under way is trained again."
        ) from None
    if not quiet:
        typer.echo("The training is over.")


def _check_pictures(folder: Path) -> None:
    """Raise if there is nothing to train on: better here than in the first round."""
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}; give a folder of pictures.") from None
    if empty:
        raise DataError(f"{folder} is empty; give a folder of pictures, with one folder for each class.")


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return {
            "client": int(found["client"]),
            "clients": int(found["clients"]) if "clients" in found else None,
            "server": str(found["server"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise NetworkError(
            f"{file.parent} is not a client's folder; give the one that the owner's `sigil serve` made."
        ) from None
