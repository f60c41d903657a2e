"""Malformed calls of every command: one sentence or the usage, status 2, nothing written, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sigil import Key, models
from sigil.cli.main import app, main

CALLS = """
nonsense
--nonsense
key
key nonsense
key new
key new a.key
key new a.key --owner A
key new a.key --owner A --shape eight
key new a.key --owner A --shape 0,8,8
key new a.key --owner A --shape 8,8,8 --bits 0
key new a.key --owner A --shape 8,8,8 --bits many
key new missing/a.key --owner A --shape 8,8,8
key new owner.key --owner A --shape 8,8,8
key new a.key --owner A --shape 8,8,8 --passphrase-file missing.txt
key show
key show missing.key
key show folder
key show words.txt
key commit missing.key
key commit words.txt
key reference missing
key stamp missing.key
key stamp words.txt --query q.tsq
key seal missing.key sealed.key --token words.txt
verify
verify half.safetensors
verify half.safetensors --key
verify half.safetensors --key missing.key
verify half.safetensors --key words.txt
verify half.safetensors --key folder
verify missing.safetensors --key owner.key
verify folder --key owner.key
verify words.txt --key owner.key
verify half.safetensors --key owner.key --architecture alexnet
verify half.safetensors --key owner.key --cut layer9
verify half.safetensors --key owner.key --width 0
verify half.safetensors --key owner.key --width wide
verify half.safetensors --key owner.key --classes -1
verify half.safetensors --key owner.key --input-shape 3;8;8
verify half.safetensors --key owner.key --at conv1
verify half.safetensors --key owner.key --time-limit 0
verify half.safetensors --key owner.key --probes 0
verify half.safetensors --key owner.key --tries 1e99
verify half.safetensors --key owner.key --alpha high
verify half.safetensors --key owner.key --inputs-from me
verify half.safetensors --key owner.key --normalisation 1,2
verify half.safetensors --key owner.key --reference missing
verify half.safetensors --key owner.key --report missing/page.html
verify half.safetensors --key owner.key --evidence owner.key
verify half.safetensors --key owner.key --sign-with missing.pem
verify half.safetensors --key owner.key --tsa-root missing.pem
issue
issue half.safetensors
issue half.safetensors --to B -o b.safetensors --key owner.key
issue half.safetensors --to B -o b.safetensors --key missing.key --register new
issue missing.safetensors --to B -o b.safetensors --key owner.key --register new
issue words.txt --to B -o b.safetensors --key owner.key --register new
issue half.safetensors --to B -o half.safetensors --key owner.key --register new
issue half.safetensors --to B -o b.safetensors --key owner.key --register words.txt
trace
trace half.safetensors
trace half.safetensors --key owner.key
trace half.safetensors --key missing.key --register folder
trace missing.safetensors --key owner.key --register folder
trace half.safetensors --key owner.key --register missing
trace half.safetensors --key owner.key --register folder
evidence
evidence check
evidence check missing.json
evidence check folder
train --set nonsense
train --set model.width
train --set model.width=wide
train --set model.nothing=1
train --set federation.rounds=0
train --set data.name=nowhere
train --config missing.toml
train --config words.txt
train --preset nowhere
train --preset paper --config words.txt
train --key missing.key
train --key words.txt
train --out words.txt
train --out words.txt/below
train --passphrase-file missing.txt
serve --clients 0
serve --out words.txt
serve --port 99999
serve --set model.nothing=1
serve --limit nonsense
serve --key missing.key
join
join missing
join folder
join words.txt
demo --out words.txt
demo --out words.txt/below
attack nonsense
attack prune
attack prune missing.safetensors --out out.safetensors --ratio 0.5
attack prune half.safetensors --out out.safetensors --ratio 2
attack prune words.txt --out out.safetensors --ratio 0.5
attack prune half.safetensors --out owner.key --ratio 0.5
attack quantize half.safetensors --out out.safetensors --format int99
attack finetune half.safetensors --out out.safetensors --data nowhere
attack permute missing.safetensors --out out.safetensors
detect
detect missing
detect folder
detect folder --detector nonsense
data fetch nowhere
data show nowhere
data partition nowhere
data partition digits --clients 0
reproduce nowhere
reproduce fidelity --scale nowhere
report
report missing
report folder
report words.txt
card
card missing
card folder
"""
COMMANDS = [line.split() for line in CALLS.strip().splitlines()]
LONG = 5000 * "x"
# What no line of words can hold: empty, endless and impossible names, absurd numbers, other scripts.
ODD = [
    ["key", "new", "", "--owner", "A", "--shape", "8,8,8"],
    ["key", "new", LONG, "--owner", "A", "--shape", "8,8,8"],
    ["key", "new", "a\0b", "--owner", "A", "--shape", "8,8,8"],
    ["key", "new", "a.key", "--owner", "", "--shape", "8,8,8"],
    ["key", "new", "a.key", "--owner", "A\u202eB", "--shape", "8,8,8"],
    ["key", "new", "a.key", "--owner", "A", "--shape", f"{10**30},8,8"],
    ["key", "new", "a.key", "--owner", "A", "--shape", "8,8,8", "--bits", f"{10**30}"],
    ["key", "show", "a\0b"],
    ["key", "show", LONG],
    ["key", "stamp", "owner.key", "--tsa", "http://[::1"],
    ["verify", "", "--key", "words.txt"],
    ["verify", LONG, "--key", "owner.key"],
    ["verify", "тест.safetensors", "--key", "owner.key"],
    ["verify", "half.safetensors", "--key", "owner.key", "--tries", 400 * "9"],
    ["verify", "half.safetensors", "--key", "owner.key", "--time-limit", "nan"],
    ["train", "--set", f"federation.rounds={10**30}"],
    ["train", "--set", f"federation.clients={10**9}"],
    ["train", "--set", "federation.rounds=1e999"],
    ["train", "--set", "optimizer.lr=nan"],
    ["train", "--set", f"data.name=folder:{LONG}"],
    ["train", "--set", "=1"],
    ["train", "--out", LONG],
    ["train", "--out", "/proc/nowhere"],
    ["attack", "permute", "half.safetensors", "--out", ""],
    ["report", LONG],
    ["detect", "a\0b"],
]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("malformed")
    half, _ = models.split(models.build("resnet18", width=4, input_size=8, seed=1), "layer3")
    models.save(folder / "half.safetensors", half)
    Key.generate("ACME", shape=(16, 2, 2), bits=16, seed=bytes(32)).save(folder / "owner.key")
    (folder / "words.txt").write_text("nothing but words\n")
    (folder / "folder").mkdir()
    return folder


def listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.name != ".lock"}


def test_there_are_calls_of_every_command() -> None:
    assert len(COMMANDS) >= 75
    assert set(typer.main.get_command(app).commands) <= {call[0] for call in COMMANDS}  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", [*COMMANDS, *ODD], ids=lambda call: " ".join(call)[:80].replace("\0", "NUL"))
def test_a_malformed_call_is_refused_in_a_sentence(
    call: list[str],
    things: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(things)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SIGIL_DATA", raising=False)
    before = listing(things)
    try:
        status = main(call)
    except SystemExit as stop:  # a group without a command shows its help
        status = int(str(stop.code))
    printed = capsys.readouterr()
    error = printed.err
    assert status == 2, printed
    assert "Traceback" not in error
    assert "bug in Sigil" not in error
    assert error.strip() or printed.out.strip()
    if error.startswith("sigil: "):
        assert error.count("\n") == 1, "more than one line"
    assert listing(things) == before, "something was written"


MISSING = [
    ["verify", "missing.safetensors", "--key", "owner.key"],
    ["verify", "half.safetensors", "--key", "missing.key"],
    ["train", "--config", "missing.toml"],
    ["train", "--key", "missing.key"],
    ["report", "missing"],
    ["key", "show", "missing.key"],
    ["key", "commit", "missing.key"],
    ["key", "stamp", "missing.key", "--query", "q.tsq"],
    ["key", "seal", "missing.key", "sealed.key"],
    ["key", "reference", "owner.key", "missing"],
    ["evidence", "check", "missing.json"],
    ["trace", "missing.safetensors", "--key", "owner.key", "--register", "folder"],
    ["issue", "missing", "--to", "B", "-o", "o", "--key", "owner.key", "--register", "r"],
    ["attack", "prune", "missing", "--out", "o", "--ratio", "0.5"],
    ["detect", "missing"],
    ["card", "missing"],
    ["join", "missing"],
    ["serve", "--config", "missing.toml"],
    ["serve", "--key", "missing.key"],
    ["serve", "--set", "data.name=folder:missing"],
    ["train", "--set", "data.name=folder:missing"],
    ["train", "--set", "data.name=cifar10", "--data-dir", "missing"],
    ["verify", "half.safetensors", "--key", "owner.key", "--inputs", "missing.npy"],
    ["verify", "half.safetensors", "--key", "owner.key", "--inputs", "missing/"],
    ["verify", "half.safetensors", "--key", "owner.key", "--inputs", "folder:missing"],
    ["key", "new", "new.key", "--owner", "A", "--shape", "64,2,2", "--inputs", "missing.npy"],
    ["data", "show", "folder:missing"],
    ["data", "partition", "cifar10", "--data-dir", "missing"],
    ["attack", "finetune", "folder", "--out", "o", "--data", "folder:missing"],
    ["attack", "extract", "folder", "--out", "o", "--data", "digits", "--student", "missing.safetensors"],
]
# One process answers all: what an earlier call imports is seen after it, and after all that follow.
FRESH = """
import contextlib, io, json, sys
from sigil.cli.main import main

answers = []
for call in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = main(call)
    heavy = {'torch', 'numpy', 'scipy', 'flwr', 'matplotlib', 'cryptography'} & set(sys.modules)
    answers.append((status, sorted(heavy), said.getvalue()))
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(things: Path) -> dict[str, tuple[int, list[str], str]]:
    """The status, the heavy modules and the sentence of each call above."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ended = subprocess.run(
        [sys.executable, "-c", FRESH, json.dumps(MISSING)],
        cwd=things,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return {" ".join(call): answer for call, answer in zip(MISSING, json.loads(ended.stdout), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("call", [" ".join(call) for call in MISSING])
def test_a_missing_file_is_named_without_importing_anything_heavy(
    call: str, answers: dict[str, tuple[int, list[str], str]]
) -> None:
    """What takes seconds is importing torch, numpy and scipy; a count of modules does not depend on load."""
    status, heavy, said = answers[call]
    assert (status, heavy) == (2, [])
    assert "missing" in said
