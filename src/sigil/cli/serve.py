"""`sigil serve` and `sigil join`: the owner's and a client's side of a training across machines."""

from __future__ import annotations

import ipaddress
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sigil import extras, files
from sigil.cli import outputs
from sigil.cli.options import AskPassphrase, DataDir, PassphraseFile, Quiet, option
from sigil.cli.terminal import printable, show_log
from sigil.cli.train import (
    Change,
    Config,
    Interrupted,
    KeyToEmbed,
    PageHost,
    PageOption,
    PagePort,
    RunFolder,
    check_run,
    find_key,
    key_beside,
    print_result,
    resumable,
    save_key,
    watched,
)
from sigil.errors import ConfigError, DataError, NetworkError, OutputError

if TYPE_CHECKING:
    from sigil.federation.settings import Settings
    from sigil.transport import Limits
    from sigil.transport.flower.deployment import Deployment

# What is written to DIR.network, as `sigil.transport.flower.deployment` describes it.
_NETWORK = (
    *("owner.json", "superlink.db", "superlink.log", "server-app.log", "tasks.secret", "flower", "clients"),
    *("ca.pem", "ca.key", "server.pem", "server.key"),
)


def serve(
    out: RunFolder = Path("runs/run"),
    clients: Annotated[int | None, option("N", "Number of clients (federation.clients).", min=1)] = None,
    config: Config = None,
    change: Change = None,
    key_file: KeyToEmbed = None,
    owner: Annotated[
        str | None, option("NAME", "Owner's name in a key that is made; asked for if left out.")
    ] = None,
    data_dir: DataDir = None,
    host: Annotated[
        str, option("HOST", "Name or address under which clients reach this machine, and to listen on.")
    ] = "127.0.0.1",
    listen: Annotated[
        str | None,
        option("ADDRESS", "Listen on this address instead, if HOST is a router's; 0.0.0.0 for all."),
    ] = None,
    port: Annotated[int, option("P", "Port for clients; the next one is used too.", min=1, max=65534)] = 9092,
    metrics_port: Annotated[
        int | None, option("P", "Serve metrics for Prometheus on this machine.", min=1, max=65535)
    ] = None,
    page: PageOption = False,
    page_host: PageHost = "127.0.0.1",
    page_port: PagePort = 0,
    minimum: Annotated[int | None, option("N", "Clients that a round needs; all if left out.", min=1)] = None,
    wait: Annotated[
        float | None, option("S", "Seconds to wait for a client that has gone; no limit if left out.", min=0)
    ] = None,
    wire: Annotated[
        Literal["float32", "bfloat16", "int8"],
        option("FORMAT", "float32, bfloat16 for half the bytes, or int8 for a quarter (slow links)."),
    ] = "float32",
    limit: Annotated[
        list[str] | None, option("NAME=VALUE", "Change a limit; see docs/network-threats.md.")
    ] = None,
    simulate: Annotated[
        int | None, option("N", "Train with N virtual clients on this machine, on Ray.", min=1)
    ] = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Make certificates and files, and do not train.")
    ] = False,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
    quiet: Quiet = False,
) -> None:
    """Train with clients on other machines, and embed a mark on the way.

    Starts everything that the owner runs and prints the line with which a
    client joins. The run's directory is that of `sigil train`. The key stays
    in this process; certificates and the clients' folders are in DIR.network.

    Killed at any moment, the same command goes on after the last finished
    round, and clients that are still there join again by themselves.

    \b
    Examples:
      sigil serve --clients 2 --owner ACME          on the embedded digits
      sigil serve -o runs/a --clients 9 --set data.name=cifar10 \\
          --data-dir ~/data --host train.example.org --key owner.key
      sigil serve --key owner.key --clients 9 --minimum 6 --wait 60
      sigil serve --key owner.key --simulate 200 --set federation.rounds=3
    """
    given = {"--config": config, "--key": key_file, "--passphrase-file": passphrase_file}
    outputs.check_there(given)
    outputs.check_changes(change or [], data_dir)
    extras.need("network")
    from sigil import hardware
    from sigil.federation import progress
    from sigil.federation import run as runs
    from sigil.federation import settings as reader
    from sigil.transport.flower import processes
    from sigil.transport.listening import Ports, listen_on, listening_address
    from sigil.transport.owner import check_minimum

    if simulate is not None:
        extras.need("simulation", "ray")
    count = simulate or clients
    changes = [*(change or []), *([f"federation.clients={count}"] if count else [])]
    settings = reader.read(config, changes)
    if settings.federation.imprint is None:
        # Virtual clients are nobody whom a copy could name.
        named = settings.marked and simulate is None
        federation = settings.federation.model_copy(update={"imprint": named})
        settings = settings.model_copy(update={"federation": federation})
    limits = _limits(limit or [])
    network = out.with_name(out.name + ".network")
    check_run(
        out,
        outputs.Folder("--out", network, _NETWORK),
        inputs=given,
    )
    _check_network(network)
    # Before anything is made: nobody is to publish a key for a training that cannot begin.
    check_minimum(minimum, settings.federation.clients)
    ports = None
    if simulate is None and not prepare:
        ports = Ports.take(listening_address(host, listen), port)
        if metrics_port is not None:
            listen_on("127.0.0.1", metrics_port, option="--metrics-port").close()
        if page and page_port:
            listen_on(page_host, page_port, option="--page-port").close()
    files.make_folder(network, mode=0o700)
    # Before Flower is imported, which reads its environment then.
    processes.quiet(network / "flower")
    from sigil.transport.flower.deployment import Deployment
    from sigil.transport.metrics import Metrics

    name = owner or _ask_owner(settings, out, key_file)
    key, made = find_key(settings, out, key_file, name, data_dir, passphrase, passphrase_file, quiet=quiet)
    if made and key is not None:
        save_key(key, out, quiet)
    deployment = Deployment(
        settings=settings,
        out=out,
        network=network,
        host=host,
        port=port,
        listen=listen,
        minimum=minimum,
        wait=wait,
        wire=wire,
        limits=limits,
        metrics_port=metrics_port,
        key_file=None if key is None else key_file or out.with_name(out.name + ".key"),
        data_dir=data_dir,
    )
    show_log(quiet)
    deployment.prepare()
    if prepare:
        typer.echo(f"SIGIL_OWNER={printable(str((network / 'owner.json').resolve()))}")
        return
    metrics = Metrics()
    with (
        resumable(out, rounds=settings.federation.rounds, more="clients that are still there join again"),
        watched(
            progress.choose(quiet),
            out=out,
            page=page,
            host=page_host,
            port=page_port,
            metrics=metrics,
            quiet=quiet,
        ) as shown,
    ):
        if ports is None:
            deployment.simulate(key, metrics=metrics, progress=shown, cores=hardware.cores())
        else:
            ready = (lambda: None) if quiet else partial(_invite, deployment)
            deployment.serve(key, ports, metrics=metrics, progress=shown, ready=ready)
    if not quiet:
        print_result(runs.open_run(out), key, key_file, data_dir)


def _check_network(network: Path) -> None:
    """Raise if the folder is there and somebody else's; the authority's key is the first file in ours."""
    if not (network / "ca.key").exists():
        for name in _NETWORK:
            if name != "flower" and os.path.lexists(network / name):
                raise OutputError(
                    f"{network / name} is there, but {network} was not made by `sigil serve`, and only what "
                    "it made is written over; choose another --out."
                )


def _ask_owner(settings: Settings, out: Path, key_file: Path | None) -> str:
    """The owner's name for a key that will be made; it is published, so nobody is given one unasked."""
    if not settings.marked or key_file is not None or key_beside(out).exists():
        return ""
    if not sys.stdin.isatty():
        raise ConfigError(
            "A key is made for this training, and its owner's name is published with it; add --owner NAME, "
            "or --key FILE for a key that is there."
        )
    name: str = typer.prompt("Owner's name, as it is published with the key", err=True)
    return name


def _invite(deployment: Deployment) -> None:
    """Print what clients copy: one whole line per client, as in the README."""
    from sigil.transport.certificates import bundle_folder

    loopback = ipaddress.ip_address(deployment.listens).is_loopback
    front, split = deployment.port, deployment.port + 1
    typer.echo(f"Listening on {deployment.listens}, ports {front} and {split}.")
    if loopback:
        typer.echo("Clients join with these lines, one each (without --part: with all data of their own):")
    else:
        typer.echo(
            "Hand each client its folder by a way that nobody else reads. Clients join with, one each:"
        )
    for client in range(deployment.clients):
        folder = shlex.quote(printable(str(bundle_folder(deployment.network, client))))
        typer.echo(f"  sigil join {folder}" + (f" --part {client}" if loopback else ""))


def _limits(changes: list[str]) -> Limits:
    from dataclasses import fields

    from sigil.transport import Limits

    known = {entry.name for entry in fields(Limits)}
    values: dict[str, float | int] = {}
    for change in changes:
        name, _, text = change.partition("=")
        try:
            value = float(text)
        except ValueError:
            raise ConfigError(f"{change!r} is not a limit; write name=number.") from None
        if name not in known:
            raise ConfigError(f"There is no limit {name!r}; choose {', '.join(sorted(known))}.")
        values[name] = int(value) if value.is_integer() else value
    return Limits(**values)  # type: ignore[arg-type]


def join(
    bundle: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that the owner handed over.")],
    data_dir: Annotated[
        Path | None, option("DIR", "Where this client's data sets are.", envvar="SIGIL_DATA")
    ] = None,
    data: Annotated[
        str | None, option("NAME", "This client's data set, if not the owner's: folder:PATH.")
    ] = None,
    part: Annotated[
        int | None, option("I", "Train on part I of the agreed partition, not on all data.", min=0)
    ] = None,
    server: Annotated[
        str | None, option("HOST:PORT", "Where the owner listens, if not as FOLDER says (a tunnel).")
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Go on in place of a process that runs as this client.")
    ] = False,
    device: Annotated[str, option("NAME", "auto, cpu, cuda, mps.")] = "auto",
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
    from sigil.transport.flower.bundle import Invitation, only_process, unpacked
    from sigil.transport.listening import split_address

    bundle = bundle.resolve()
    invitation = Invitation.read(bundle)
    clients = invitation.clients
    if part is not None and part >= clients:
        raise NetworkError(
            f"There is no part {part}: this training has {clients} clients, so --part is 0 to {clients - 1}, "
            f"and {invitation.client} is the one that goes with this folder."
        )
    if server is not None:
        split_address(server)
    if data is not None and data.startswith("folder:"):
        _check_pictures(Path(data.removeprefix("folder:")))
    given = {
        "device": device,
        "data-dir": None if data_dir is None else str(data_dir.resolve()),
        "data": data,
        "part": part,
        "server": server,
    }
    config = {name: value for name, value in given.items() if value is not None}
    show_log(quiet)
    try:
        with only_process(bundle, take_over=take_over), unpacked(bundle) as folder:
            _take_part(folder, server or invitation.server, invitation.client, config, quiet=quiet)
    except KeyboardInterrupt:
        raise Interrupted(
            "Stopped. The same command goes on; a round that was under way is trained again."
        ) from None
    if not quiet:
        typer.echo("The training is over.")


def _take_part(folder: Path, server: str, client: int, config: dict[str, str | int], *, quiet: bool) -> None:
    """Do the owner's tasks until the training is over, with the copies of the bundle in `folder`."""
    from sigil.transport.flower import processes

    # Before Flower is imported, which reads its environment then.
    processes.quiet(folder / "flower")
    from sigil.transport.flower import client_app
    from sigil.transport.flower.node import Node

    with Node(folder, server, config={"bundle": str(folder), **config}) as node:
        if not quiet:
            typer.echo(
                f"Joining {printable(server)} as client {client}; waiting for the owner to begin a round."
            )
        node.work(client_app.app, finished=client_app.finished.is_set)


def _check_pictures(folder: Path) -> None:
    """Raise if there is nothing to train on: better here than in the first round."""
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}; give a folder of pictures.") from None
    if empty:
        raise DataError(f"{folder} is empty; give a folder of pictures, with one folder for each class.")
