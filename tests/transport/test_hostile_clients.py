"""Clients with a valid certificate that answer as they like, as real processes."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import torch

from harness.processes import TrainingProcesses
from harness.replay import replay
from sigil import models
from sigil.federation.from_settings import load_data
from sigil.federation.settings import read
from sigil.keys.key import Key
from sigil.transport.flower.superlink import APP

SETTINGS = [
    "model.width=4", "data.train_limit=90", "data.test_limit=30", "federation.clients=3",
    "federation.rounds=2", "federation.local_epochs=1", "federation.batch_size=8", "watermark.bits=8",
    "watermark.scheme=paper", "run.workers=1", "run.threads=1", "run.device=cpu", "run.precision=float32",
    "federation.imprint=true",
]  # fmt: skip


def strangers_are_refused(network: Path, home: Path) -> None:
    """What others on the owner's machine can do with the SuperLink, who have its address and ``ca.pem``."""
    shutil.copytree(network / "flower", home)
    environment = os.environ | {"FLWR_HOME": str(home), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    command = [str(Path(sys.executable).with_name("flwr")), "run", str(APP), "--format", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "403 Forbidden" in done.stdout, done.stdout + done.stderr
    (address,) = re.findall(r'^address = "(.*)"$', (home / "config.toml").read_text(), re.MULTILINE)
    trust = ssl.create_default_context(cafile=network / "ca.pem")
    with httpx.Client(base_url=f"https://{address}", verify=trust, trust_env=False) as line:
        for path in (
            "/",
            "/v1/control/list-runs",
            "/v1/control/register-node",
            "/v1/control/stop-run",
            "/v1/fleet/pull-messages",
            "/v1/runtime/../control/list-runs",
        ):
            for told in ({}, {"x-sigil-owner": ""}, {"x-sigil-owner": "0" * 64}):
                assert line.post(path, headers=told).status_code == 403


def test_heavy_and_hollow_answers_cost_their_clients_their_place_and_nobody_else_anything(
    tmp_path: Path,
) -> None:
    """One is more than a half, the other no message at all: the owner trains on."""
    key = Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=bytes(range(32)))
    key.save(tmp_path / "owner.key")
    options = [word for change in SETTINGS for word in ("--set", change)]
    options += ["--key", str(tmp_path / "owner.key"), "--minimum", "1"]
    with TrainingProcesses(tmp_path / "run", clients=3, options=options) as training:
        owner = training.serve()
        strangers_are_refused(training.network, tmp_path / "stranger")
        training.join(0)
        training.join(1, hostile="heavy:1000000")
        training.join(2, hostile="hollow")
        training.until(lambda: owner.poll() is not None)
        said = training.log.read_text()
        assert owner.returncode == 0, said
    assert len(re.findall(r"^client 1 answered with more .* and is out$", said, re.MULTILINE)) == 1
    assert said.count("client 2 did not do round 1: ") == 5
    settings = read(None, SETTINGS)
    expected = replay(settings, load_data(settings), key=key, participants=[[0], [0]])
    ours = models.load(training.out / "client.safetensors").state_dict()
    assert all(torch.equal(ours[name], value) for name, value in expected.client_state.items())
