"""`sigil join`: a client's side of a training across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    from sigil.transport.flower.bundle import Invitation, unpacked
    from sigil.transport.flower.only_process import only_process
    from sigil.transport.listening import split_address

    bundle = bundle.resolve()
    invitation = Invitation.read(bundle)
    clients = invitation.clients
    if part is not None and clients is not None and part >= clients:
        raise NetworkError(
            f"There is no part {part}: this training has {clients} clients, so --part is 0 to {clients - 1}, "
            f"and {invitation.client} is the one that goes with this folder."
        )
    if server is not None:
        split_address(server)
    if data is not None and data.startswith("folder:"):
        _check_pictures(Path(data.removeprefix("folder:")))
    config: dict[str, str | int] = {"device": device}
    if data_dir is not None:
        config["data-dir"] = str(data_dir.resolve())
    if data is not None:
        config["data"] = data
    if part is not None:
        config["part"] = part
    if server is not None:
        config["server"] = server
    show_log(quiet)
    try:
        with only_process(bundle, take_over=take_over), unpacked(bundle) as own:
            _take_part(own, server or invitation.server, invitation.client, config, quiet=quiet)
    except KeyboardInterrupt:
        raise Interrupted(
            "Stopped. The same command goes on; a round that was under way is trained again."
        ) from None
    if not quiet:
        typer.echo("The training is over.")


def _take_part(own: Path, server: str, client: int, config: dict[str, str | int], *, quiet: bool) -> None:
    """Do the owner's tasks until the training is over, with the copies of the bundle in `own`."""
    from sigil.transport.flower import processes

    # Before Flower is imported, which reads its environment then.
    processes.quiet(own / "flower")
    from sigil.transport.flower import client_app
    from sigil.transport.flower.supernode import SuperNode
    from sigil.transport.flower.tunnel import Tunnel

    with Tunnel(own, server) as tunnel:
        if not quiet:
            typer.echo(
                f"Joining {printable(server)} as client {client}; waiting for the owner to begin a round."
            )
        with SuperNode(
            own,
            address=tunnel.address,
            ca=tunnel.ca,
            private_key=own / "node.key",
            config={"bundle": str(own), **config},
        ) as node:
            node.work(client_app.app, finished=client_app.finished.is_set)


def _check_pictures(folder: Path) -> None:
    """Raise if there is nothing to train on: better here than in the first round."""
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}; give a folder of pictures.") from None
    if empty:
        raise DataError(f"{folder} is empty; give a folder of pictures, with one folder for each class.")
