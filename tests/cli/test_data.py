from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from sigil import data
from sigil.cli import outputs
from sigil.cli.data import app
from sigil.data import official
from sigil.errors import DataError

runner = CliRunner()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SIGIL_DATA", raising=False)


def run(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_describes_a_set() -> None:
    shown = run("show", "digits")
    assert "1,438 images" in shown
    assert "1 x 8 x 8" in shown


def test_show_as_json_with_reductions() -> None:
    facts = json.loads(run("show", "digits", "--classes", "4", "--train-limit", "80", "--json"))
    assert facts["name"] == "digits"
    assert facts["train"] == 80
    assert facts["classes"] == 4
    assert facts["shape"] == [1, 8, 8]


def test_show_resizes_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("L", (20, 10), 100).save(tmp_path / split / name / "1.png")
    facts = json.loads(run("show", f"folder:{tmp_path}", "--size", "16", "--json"))
    assert facts["shape"] == [1, 16, 16]


def test_partition_counts_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "who.png"
    options = ["--clients", "5", "--kind", "dirichlet", "--beta", "0.5", "--out", str(picture)]
    shown = run("partition", "digits", *options)
    assert "clients  5" in shown
    assert str(picture) in shown
    with Image.open(picture) as drawn:
        assert drawn.width > 500


def test_partition_as_json_is_the_counts() -> None:
    options = ["--clients", "4", "--kind", "lognormal", "--sigma", "1", "--train-limit", "200"]
    counts = json.loads(run("partition", "digits", *options, "--json"))["clients"]
    assert [len(count) for count in counts] == [10] * 4
    assert sum(map(sum, counts)) == 200
    again = json.loads(run("partition", "digits", *options, "--seed", "0", "--json"))["clients"]
    other = json.loads(run("partition", "digits", *options, "--seed", "1", "--json"))["clients"]
    assert counts == again
    assert counts != other


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "cifar10"],
        ["show", "no-such-set"],
        ["partition", "digits", "--kind", "dirichlet"],
        ["partition", "digits", "--clients", "1000"],
        ["fetch", "digits"],
    ],
)
def test_mistakes_are_data_errors(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, DataError)


def test_fetch_from_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-py/readme.html")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    content = file.getvalue()
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    known = (official.File("cifar-10-python.tar.gz", md5, len(content)),)
    monkeypatch.setitem(official.OFFICIAL, "cifar10", replace(official.OFFICIAL["cifar10"], files=known))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        target = str(tmp_path / "data")
        shown = run("fetch", "cifar10", "--data-dir", target, "--base-url", address, "--quiet")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert "cifar10 is in" in shown
    assert (tmp_path / "data/cifar-10-batches-py/readme.html").read_bytes() == b"hello"


def test_the_light_list_of_names_is_that_of_the_library() -> None:
    assert list(outputs.NAMES) == data.names()
    for name in outputs.NAMES:
        if name in outputs.EMBEDDED:
            outputs.check_data("--data", name, Path("/nowhere"))
        else:
            with pytest.raises(DataError, match=f"`sigil data fetch {name} --data-dir /nowhere`"):
                outputs.check_data("--data", name, Path("/nowhere"))
