"""What hostile strangers and clients cost an owner, and what a hostile owner can do to a client.

    PYTHONPATH=tests python benchmarks/hostile.py [--part ports] [--connections 2000] [--json hostile.json]

*Ports*: floods and dawdlers against the three ports of an owner, while an honest client trains on. The HTTPS
front, the split service and the metrics endpoint run in a process of their own, on the loopback address. One
after another come: connections that say nothing or a byte now and then, connections by the thousand, bodies
without a certificate, unfinished requests with one, huge headers and metadata, replayed greetings and foreign
tickets. For each, the largest memory of the owner's process beyond what it had before the attack, and the
honest client's median step beside its median in the quiet before.

Everything is bounded: at most `--connections` at a time in all, a few seconds for each attack.

*Answers*: `sigil serve` with `--wait 20 --limit round_seconds=40`, an honest client, and one with a valid
certificate that answers as it likes (``tests/harness/hostile_clients.py``), all as processes. For each kind,
the largest memory of the owner and its children together, how long two rounds took, what the owner said of
that client, and what a stranger on its machine is told who stops the run.

*Owner*: `sigil join` with a folder that an owner prepared, or with an owner who names the client's data.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from PIL import Image

from common import command_line, write_result
from harness.processes import TrainingProcesses
from sigil.federation import Settings
from sigil.federation.from_settings import (
    Training,
    build_halves,
    load_data,
    scheduled_rate,
)
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.transport import (
    ClientCredentials,
    Metrics,
    RoundTask,
    ServerCredentials,
    SplitService,
    certificates,
    train_round,
    wire,
)
from sigil.transport.flower.bundle import Invitation, write_node_key
from sigil.transport.flower.https_front import HttpsFront
from sigil.transport.flower.processes import free_port
from sigil.transport.listening import listen_on
from sigil.transport.wire import Header, Kind

SETTINGS = {
    "model": {"name": "resnet18", "width": 8, "cut": "layer3"},
    "data": {"name": "digits"},
    "federation": {"clients": 2, "rounds": 1, "local_epochs": 1000, "batch_size": 16},
    "watermark": {"strength": 0.5, "bits": 64},
    "run": {"device": "cpu", "precision": "float32", "workers": 1, "threads": 1},
}
BODY = b"POST /v1/fleet/x HTTP/1.1\r\nhost: a\r\ncontent-length: 16000000\r\n\r\n"
CALM_SECONDS, ATTACK_SECONDS = 10.0, 6.0


def serve(pipe: Connection, folder: Path, settings: Settings, clients: dict[int, str]) -> None:
    """Body of the owner's process: all three ports; on request it tells its memory and its refusals."""
    torch.set_num_threads(1)
    logging.getLogger("sigil").setLevel(logging.ERROR)
    dataset = load_data(settings)
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    key = Key.generate("ACME", shape=shape, bits=64, seed=bytes(range(32)))
    metrics, listener = Metrics(), listen_on("127.0.0.1", 0)
    port = listener.getsockname()[1]
    front = HttpsFront(
        listener,
        folder,
        target=f"127.0.0.1:{free_port()}",
        known=clients.values(),
        metrics=metrics,
    )
    service = SplitService(
        Training.prepare(settings, dataset, key=key),
        credentials=ServerCredentials.load(folder),
        metrics=metrics,
    )
    with front, service:
        tickets = service.open_round(
            1, service.initial_state, lr=scheduled_rate(settings, 1), clients=clients
        )
        ports = (port, int(service.address.rpartition(":")[2]), metrics.serve(0))
        pipe.send((service.address, ports, tickets))
        while pipe.recv() == "look":
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            pipe.send((pages * os.sysconf("SC_PAGE_SIZE") / 2**20, metrics.refusals()))


class Honest(threading.Thread):
    """A client that trains as agreed and notes how long each step takes."""

    def __init__(self, task: RoundTask, settings: Settings, credentials: ClientCredentials) -> None:
        super().__init__(daemon=True)
        self._task, self._settings, self._credentials = task, settings, credentials
        self.steps: list[tuple[float, float]] = []
        self.trouble: BaseException | None = None

    def run(self) -> None:
        training = Training.of_client(self._settings, load_data(self._settings))
        last = time.monotonic()

        def tick(images: int) -> None:
            nonlocal last
            now = time.monotonic()
            self.steps.append((now, now - last))
            last = now

        try:
            train_round(
                self._task,
                training,
                0,
                credentials=self._credentials,
                tick=tick,
            )
        except BaseException as error:
            self.trouble = error

    def median(self, since: float) -> float:
        return statistics.median(length for at, length in self.steps if at > since)


class Attacks:
    """What comes against the ports; each method opens its connections and leaves them on `lines`."""

    def __init__(
        self, ports: tuple[int, int, int], folder: Path, tickets: dict[int, str], count: int
    ) -> None:
        self.ports, self.folder, self.tickets, self.count = ports, folder, tickets, count
        self.lines: list[socket.socket] = []
        self.until = 0.0

    def silent(self) -> None:
        """Connections that say a byte a second, or nothing."""
        for number in range(self.count):
            self._open(self.ports[number % 3])
        while time.monotonic() < self.until:
            for line in self.lines:
                with contextlib.suppress(OSError):
                    line.send(b"\x16")
            time.sleep(1)

    def thousands(self) -> None:
        """Connections that come and go at once."""
        while time.monotonic() < self.until:
            for port in self.ports:
                self._open(port)
            if len(self.lines) > 300:
                self.close()
            time.sleep(0.001)

    def bodies_without_certificate(self) -> None:
        """What made the owner's process grow by 626 MB: requests of 16 MB that nobody vouches for."""
        for _ in range(40):
            self._secure(None, BODY, bytes(2**20))
        self._wait()

    def unfinished_with_certificate(self) -> None:
        """A client of the run with as many open requests as it can get, none of them finished."""
        for number in range(200):
            self._secure(1, BODY if number % 2 else b"POST /v1/fl", bytes(2**20) if number % 2 else b"")
        self._wait()

    def huge_metadata(self) -> None:
        """Headers and gRPC metadata of megabytes."""
        own = self._credentials(1)
        secure = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        options = [
            ("grpc.ssl_target_name_override", certificates.SERVER_NAME),
            ("grpc.max_metadata_size", 2**24),
        ]
        with grpc.secure_channel(f"127.0.0.1:{self.ports[1]}", secure, options=options) as channel:
            while time.monotonic() < self.until:
                call = channel.stream_stream(wire.METHOD)(iter([b"x"]), metadata=[("large", "y" * 2**20)])
                with contextlib.suppress(grpc.RpcError):
                    list(call)
                self._secure(1, b"POST /v1/fleet/x HTTP/1.1\r\nlarge: " + b"y" * 2**20)
                plain = self._open(self.ports[2])
                if plain is not None:
                    with contextlib.suppress(OSError):
                        plain.sendall(b"GET /metrics HTTP/1.1\r\nlarge: " + b"y" * 2**17)
                self.close()

    def replays_and_foreign_tickets(self) -> None:
        """Greetings with the honest client's ticket, one's own again and again, and a stranger's."""
        own = self._credentials(1)
        secure = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        options = [("grpc.ssl_target_name_override", certificates.SERVER_NAME)]
        hellos = [
            wire.hello(bytes.fromhex(ticket), round_number=1, client=client, answers=answers)
            for client, ticket, answers in (
                (0, self.tickets[0], 0),
                (1, self.tickets[1], 0),
                (1, self.tickets[1], 7),
                (1, "00" * 32, 0),
            )
        ]
        step = Header(Kind.ACTIVATION, 1, 1, 1).pack()
        with grpc.secure_channel(f"127.0.0.1:{self.ports[1]}", secure, options=options) as channel:
            while time.monotonic() < self.until:
                for hello in hellos:
                    # A stream with one's own ticket is held open, as the round goes on.
                    call = channel.stream_stream(wire.METHOD)(iter([hello, step, hello]), timeout=1.0)
                    with contextlib.suppress(grpc.RpcError):
                        list(call)

    def close(self) -> None:
        for line in self.lines:
            line.close()
        self.lines.clear()

    def _open(self, port: int) -> socket.socket | None:
        try:
            line = socket.create_connection(("127.0.0.1", port), timeout=0.5)
        except OSError:
            return None
        self.lines.append(line)
        return line

    def _secure(self, client: int | None, *said: bytes) -> None:
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        if client is not None:
            bundle = certificates.bundle_folder(self.folder, client)
            context.load_cert_chain(bundle / "client.pem", bundle / "client.key")
        line = self._open(self.ports[0])
        if line is None:
            return
        with contextlib.suppress(OSError):
            secured = context.wrap_socket(line, server_hostname="localhost")
            self.lines.append(secured)
            for part in said:
                secured.sendall(part)

    def _credentials(self, client: int) -> ClientCredentials:
        return ClientCredentials.load(certificates.bundle_folder(self.folder, client))

    def _wait(self) -> None:
        time.sleep(max(0.0, self.until - time.monotonic()))


def measure(folder: Path, count: int) -> dict[str, Any]:
    settings = make(SETTINGS)
    fingerprints = certificates.make(folder, clients=2)
    context = multiprocessing.get_context("spawn")
    pipe, there = context.Pipe()
    process = context.Process(target=serve, args=(there, folder, settings, fingerprints))
    process.start()
    there.close()
    address, ports, tickets = pipe.recv()
    dataset = load_data(settings)
    half = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).client
    task = RoundTask(1, address, tickets[0], lr=scheduled_rate(settings, 1), client_state=half.state_dict())
    own = ClientCredentials.load(certificates.bundle_folder(folder, 0))
    honest = Honest(task, settings, own)
    honest.start()

    def look() -> tuple[float, dict[str, dict[str, int]]]:
        pipe.send("look")
        seen: tuple[float, dict[str, dict[str, int]]] = pipe.recv()
        return seen

    rows = []
    attacks = Attacks(ports, folder, tickets, count)
    todo: list[Callable[[], None]] = [
        attacks.silent,
        attacks.thousands,
        attacks.bodies_without_certificate,
        attacks.unfinished_with_certificate,
        attacks.huge_metadata,
        attacks.replays_and_foreign_tickets,
    ]
    while len(honest.steps) < 20 and honest.is_alive():
        time.sleep(0.2)
    print(f"{'attack':34}{'memory':>9}{'grown by':>10}{'step':>9}{'/ calm':>8}")
    for attack in todo:
        began = time.monotonic()
        time.sleep(CALM_SECONDS)
        calm = honest.median(began)
        before, _ = look()
        began = time.monotonic()
        attacks.until = began + ATTACK_SECONDS
        thread = threading.Thread(target=attack)
        thread.start()
        largest = before
        while thread.is_alive():
            largest = max(largest, look()[0])
            time.sleep(0.1)
        busy = honest.median(began)
        attacks.close()
        row = {
            "attack": attack.__name__.replace("_", " "),
            "memory": largest,
            "grown": largest - before,
            "step": busy,
            "ratio": busy / calm,
        }
        rows.append(row)
        print(
            f"{row['attack']:34}{largest:6.0f} MB{row['grown']:7.1f} MB{1000 * busy:6.1f} ms"
            f"{row['ratio']:8.2f}",
            flush=True,
        )
    alive = honest.is_alive() and honest.trouble is None
    refused = {kind: {k: v for k, v in counts.items() if v} for kind, counts in look()[1].items()}
    pipe.send("end")
    process.join(30)
    if process.is_alive():
        process.kill()
    print(f"the honest client {'trains on' if alive else f'ended: {honest.trouble}'}; refused: {refused}")
    return {"rows": rows, "refused": refused, "honest": alive}


def tree_megabytes(process: int) -> float:
    """The memory of a process and all that it started."""
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20 + sum(tree_megabytes(int(one)) for one in children)
    return 0.0


def answers(folder: Path) -> list[dict[str, Any]]:
    """Two rounds with an honest client and one that answers as it likes."""
    rows: list[dict[str, Any]] = []
    small = {"model.width": 4, "data.train_limit": 90, "data.test_limit": 30, "federation.clients": 2}
    small |= {"federation.rounds": 2, "federation.local_epochs": 1, "federation.batch_size": 8}
    small |= {"run.workers": 1, "run.threads": 1, "watermark.bits": 8}
    options = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    options += ["--owner", "ACME", "--minimum", "1", "--wait", "20", "--limit", "round_seconds=40"]
    for kind in (None, "heavy:800000000", "silent", "slow:8", "hollow", "stray"):
        out = folder / (kind or "honest").partition(":")[0]
        with TrainingProcesses(out, clients=2, options=options) as training:
            owner = training.serve()
            refused = "" if rows else stopped_by_a_stranger(training.network, folder / "stranger")
            began, largest = time.monotonic(), 0.0
            training.join(0)
            training.join(1, hostile=kind)
            while owner.poll() is None and time.monotonic() < began + 600:
                largest = max(largest, tree_megabytes(owner.pid))
                time.sleep(0.05)
            lines = training.log.read_text().splitlines()
            said = [line for line in lines if "client 1" in line] + lines[-1:] * bool(owner.returncode)
            row = {
                "client": kind or "honest",
                "memory": round(largest),
                "seconds": round(time.monotonic() - began, 1),
                "status": owner.returncode,
                "said": list(dict.fromkeys(said)),
            }
            if refused:
                row["stranger stops the run"] = refused
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def stopped_by_a_stranger(network: Path, home: Path) -> str:
    """What `flwr stop` is told with the owner's address and authority, and without its secret."""
    shutil.copytree(network / "flower", home)
    command = [str(Path(sys.executable).with_name("flwr")), "stop", "1", "--format", "json"]
    environment = os.environ | {"FLWR_HOME": str(home), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return "403 Forbidden" if "403 Forbidden" in done.stdout else done.stdout


def owned(folder: Path) -> list[dict[str, Any]]:
    """What a folder from an owner, or what an owner asks for, does to a client."""
    rows = []
    victim = folder / "authorized_keys"
    changes: dict[str, Callable[[Path], None]] = {}
    for name in ("supernode.log", "node.key", "ca.pem", "client.key", "join.json", ".joined"):

        def link(bundle: Path, name: str = name) -> None:
            (bundle / name).unlink(missing_ok=True)
            (bundle / name).symlink_to(victim)

        changes[f"{name} is a link to a file of the client's"] = link

    def pipe(bundle: Path) -> None:
        (bundle / "join.json").unlink()
        os.mkfifo(bundle / "join.json")

    def long(bundle: Path) -> None:
        (bundle / "client.pem").write_bytes(b" " * 10**6)

    changes |= {"join.json is a pipe": pipe, "client.pem has a million bytes": long}
    for number, (what, change) in enumerate(changes.items()):
        victim.write_text("mine\n")
        network = folder / f"network {number}"
        certificates.make(network, clients=1)
        bundle = certificates.bundle_folder(network, 0)
        write_node_key(bundle)
        Invitation(0, 1, f"127.0.0.1:{free_port()}").write(bundle)
        change(bundle)
        status, said = joined(bundle)
        rows.append(
            {"owner": what, "status": status, "said": said, "untouched": victim.read_text() == "mine\n"}
        )
        print(json.dumps(rows[-1]), flush=True)
    rows.append(named_by_the_owner(folder))
    print(json.dumps(rows[-1]), flush=True)
    return rows


def joined(bundle: Path) -> tuple[int | None, str]:
    """`sigil join` until it ends or waits for its owner; its status, if it ended, and its last line."""
    log = bundle.parents[1] / "said"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "sigil.cli.main", "join", str(bundle)]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    until = time.monotonic() + 300
    while process.poll() is None and b"Waiting" not in log.read_bytes() and time.monotonic() < until:
        time.sleep(0.1)
    status = process.poll()
    process.terminate()
    process.wait()
    said = log.read_text().strip().splitlines()
    return status, (said or [""])[-1].replace(str(bundle.parents[2]), "")


def named_by_the_owner(folder: Path) -> dict[str, Any]:
    """An owner whose training is on a folder, and a client that names no data."""
    pictures, random = folder / "pictures", np.random.default_rng(0)
    for part in ("train", "test"):
        for label in ("a", "b"):
            (pictures / part / label).mkdir(parents=True)
            for number in range(20):
                values = random.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(values).save(pictures / part / label / f"{number}.png")
    small = {"data.name": f"folder:{pictures}", "model.width": 4, "federation.rounds": 1, "watermark.bits": 8}
    options = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    with TrainingProcesses(
        folder / "named", clients=1, options=[*options, "--minimum", "1", "--owner", "ACME"]
    ) as training:
        training.serve()
        client = training.join(0)
        log = certificates.bundle_folder(training.network, 0) / "join.log"
        until = time.monotonic() + 120
        wanted = "The owner wants this client"
        while wanted not in log.read_text() and client.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        said, status = (
            next((line for line in log.read_text().splitlines() if wanted in line), ""),
            client.poll(),
        )
    return {
        "owner": "names a folder as the client's data",
        "status": status,
        "said": said.replace(str(folder), ""),
        "untouched": bool(said),
    }


PARTS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {"answers": answers, "owner": owned}


def main() -> int:
    parser = command_line(__doc__, written="write to this file; what it holds of other parts stays")
    parser.add_argument("--part", action="append", choices=["ports", *PARTS], help="all, if none is given")
    parser.add_argument("--connections", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    if arguments.json is not None and arguments.json.exists():
        found = json.loads(arguments.json.read_text())
    for part in arguments.part or ["ports", *PARTS]:
        with tempfile.TemporaryDirectory() as folder:
            if part == "ports":
                found |= measure(Path(folder), arguments.connections)
            else:
                found[part] = PARTS[part](Path(folder).resolve())
        write_result(arguments.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
