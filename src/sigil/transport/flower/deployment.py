"""Everything that the owner of a training across machines runs, from certificates to the last round.

The network's folder holds what `sigil.transport.certificates` makes, and of Flower:

=======================  ===========================================================================
file                     content
=======================  ===========================================================================
owner.json               what is trained and where: paths, addresses, settings, no secret
superlink.db             the nodes that Flower knows, by their public keys
superlink.log            what the SuperLink says
server-app.log           what the ServerApp of Flower's own commands did, and why it ended
tasks.secret             shared with the SuperLink, so that nobody else runs the ServerApp
flower/                  Flower's own files
clients/0000/            what client 0 gets (:mod:`sigil.transport.flower.bundle`)
=======================  ===========================================================================

The owner's key is in none of them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sigil import files, local_ray
from sigil.errors import ConfigError, NetworkError, reason
from sigil.federation.progress import Progress, Together
from sigil.federation.run import Run, train
from sigil.federation.settings import Settings, make
from sigil.keys.key import Key
from sigil.transport import certificates
from sigil.transport.certificates import ServerCredentials, bundle_folder
from sigil.transport.flower.bundle import Invitation, public_key, write_node_key
from sigil.transport.flower.client_app import CLIENTS_VARIABLE
from sigil.transport.flower.client_app import app as client_app
from sigil.transport.flower.https_front import HttpsFront
from sigil.transport.flower.messenger import FlowerMessenger
from sigil.transport.flower.superlink import SuperLink
from sigil.transport.limits import Limits
from sigil.transport.listening import Ports, listening_address, split_address
from sigil.transport.metrics import Metrics
from sigil.transport.owner import NetworkSettings, RemoteTrainer
from sigil.transport.wire import Wire

OWNER_FILE = "owner.json"


@dataclass(frozen=True)
class Deployment:
    """A training across machines, as the owner described it.

    Clients reach the HTTPS front at `host`:`port` and the split service one port further; both listen on the
    address `listen` (none: the address of this machine that `host` means). `out` is the run's directory,
    `network` that of the certificates.
    """

    settings: Settings
    out: Path
    network: Path
    host: str = "127.0.0.1"
    port: int = 9092
    listen: str | None = None
    minimum: int | None = None
    wait: float | None = None
    wire: Wire = "float32"
    limits: Limits = field(default_factory=Limits)
    metrics_port: int | None = None
    key_file: Path | None = None
    data_dir: Path | None = None

    @property
    def clients(self) -> int:
        """How many clients take part."""
        return self.settings.federation.clients

    @property
    def address(self) -> str:
        """Where clients find the HTTPS front."""
        return _address(self.host, self.port)

    @property
    def listens(self) -> str:
        """The address to listen on."""
        return listening_address(self.host, self.listen)

    def prepare(self) -> None:
        """Make the certificates that are not there yet, and write what clients and a ServerApp read."""
        certificates.make(self.network, clients=self.clients, hosts=[self.host])
        _check_name(self.network / "server.pem", self.host)
        for client, bundle in enumerate(self._bundles):
            write_node_key(bundle)
            Invitation(client, self.clients, self.address).write(bundle)
        content = asdict(self) | {"settings": self.settings.model_dump(mode="json")}
        text = json.dumps(content, indent=1, default=_absolute)
        files.write(self.network / OWNER_FILE, text, replace=True, mode=0o644, raises=NetworkError)

    @classmethod
    def load(cls, file: Path) -> Deployment:
        """Read what :meth:`prepare` wrote."""
        try:
            values: dict[str, Any] = json.loads(file.read_text())
            values["settings"] = make(values["settings"])
            values["limits"] = Limits(**values["limits"])
            for name in ("out", "network", "key_file", "data_dir"):
                values[name] = None if values[name] is None else Path(values[name])
            return cls(**values)
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(f"{file} is not a file that `sigil serve --prepare` wrote.") from None

    def network_settings(self, *, metrics: Metrics | None = None, simulated: bool = False) -> NetworkSettings:
        """With whom to train, where and how long to wait; virtual clients are all on this machine."""
        return NetworkSettings(
            clients={
                client: certificates.fingerprint((bundle / "client.pem").read_bytes())
                for client, bundle in enumerate(self._bundles)
            },
            credentials=ServerCredentials.load(self.network),
            listen="127.0.0.1:0" if simulated else _address(self.listens, self.port + 1),
            public=None if simulated else split_address(self.address),
            minimum=self.minimum,
            wait=self.wait,
            wire=self.wire,
            limits=self.limits,
            metrics=metrics or Metrics(),
        )

    def train(
        self,
        grid: Grid,
        network: NetworkSettings,
        *,
        key: Key | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> Run:
        """Train the whole run with the clients that `grid` reaches: what a ServerApp does.

        The key is read from its file if it is not given. Setting `stop` ends it with an error.
        """
        if key is None and self.key_file is not None:
            key = Key.load(self.key_file, passphrase=os.environ.get("SIGIL_PASSPHRASE"))
        nodes = {public_key(bundle): client for client, bundle in enumerate(self._bundles)}
        simulated = network.public is None
        messenger = FlowerMessenger(grid, self.settings, nodes=None if simulated else nodes, stop=stop)
        run = train(
            self.settings,
            self.out,
            key=key,
            data_dir=self.data_dir,
            progress=Together(progress or Progress(), network.metrics),
            trainer=partial(RemoteTrainer, messenger=messenger, network=network),
        )
        messenger.dismiss()
        return run

    def serve(
        self,
        key: Key | None,
        ports: Ports,
        *,
        metrics: Metrics,
        progress: Progress,
        ready: Callable[[], None],
    ) -> None:
        """Run SuperLink, HTTPS front, split service and ServerApp until the training is done.

        `ready` is called as soon as clients can join. The ports are closed in the end.
        """
        network = self.network_settings(metrics=metrics)
        if self.metrics_port is not None:
            metrics.serve(self.metrics_port)
        with (
            ports,
            SuperLink(self.network) as link,
            HttpsFront(
                ports.front,
                self.network,
                target=link.address,
                secret=link.secret,
                known=network.clients.values(),
                limits=self.limits,
                metrics=metrics,
            ) as front,
        ):
            network = replace(network, held=ports.split, front=front)
            link.run(
                _app(lambda grid: self.train(grid, network, key=key, progress=progress)),
                nodes=[bundle / "node.pub" for bundle in self._bundles],
                ready=ready,
            )

    def simulate(self, key: Key | None, *, metrics: Metrics, progress: Progress, cores: int) -> None:
        """Train with virtual clients on Flower's Ray backend, `cores` of them at a time."""
        from flwr.simulation import run_simulation

        # For the processes that Ray starts; one virtual client fills one core.
        os.environ |= {
            CLIENTS_VARIABLE: str(self.network.resolve()),
            "OMP_NUM_THREADS": "1",
            "GRPC_VERBOSITY": "ERROR",
        }
        if self.data_dir is not None:
            os.environ["SIGIL_DATA"] = str(self.data_dir.resolve())
        try:
            local_ray.start(cores)
        except Exception as error:
            raise NetworkError(
                f"Ray did not start on this machine ({reason(error)}); use `sigil train`, or try again when "
                "it is less busy."
            ) from None
        network = self.network_settings(metrics=metrics, simulated=True)
        stop = threading.Event()
        try:
            run_simulation(  # on the Ray that runs already
                server_app=_app(
                    lambda grid: self.train(grid, network, key=key, progress=progress, stop=stop)
                ),
                client_app=client_app,
                num_supernodes=self.clients,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
            )
        except RuntimeError:
            # Flower's word for a backend that failed; its own log lines say why.
            raise NetworkError(
                "Ray could not run the virtual clients (the lines above say why); use `sigil train`, or "
                "try again when the machine is less busy."
            ) from None
        finally:
            stop.set()  # the ServerApp is a thread, and would wait for clients for ever
            local_ray.stop()

    @property
    def _bundles(self) -> list[Path]:
        return [bundle_folder(self.network, client) for client in range(self.clients)]


def _app(work: Callable[[Grid], object]) -> ServerApp:
    """The ServerApp that does this."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        work(grid)

    return server_app


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_name(certificate: Path, host: str) -> None:
    names = (
        x509.load_pem_x509_certificate(certificate.read_bytes())
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    known = {str(name.value) for name in names}
    if host not in known:
        raise NetworkError(
            f"{certificate} is for {', '.join(sorted(known))}, not for {host}; delete it and its key to have "
            "new ones made."
        )


def _absolute(value: object) -> str:
    assert isinstance(value, Path)
    return str(value.resolve())
