"""Models to attack, from files and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sigil import models
from sigil.attacks.target import check_target, open_model, save_model
from sigil.errors import AttackError, ModelError, SuspectError


def test_a_pair_is_a_directory_and_a_model_is_a_file(marked: Any, tmp_path: Path) -> None:
    files = save_model(tmp_path / "run", marked.halves)
    assert [file.name for file in files] == ["client.safetensors", "server.safetensors"]
    pair = open_model(tmp_path / "run")
    assert isinstance(pair, tuple)
    assert [half.spec for half in pair] == [half.spec for half in marked.halves]
    again = open_model(files[0], server=files[1])
    assert isinstance(again, tuple)
    alone = open_model(files[0])
    assert isinstance(alone, models.Model)
    assert alone.spec.part == "client"
    (file,) = save_model(tmp_path / "whole.safetensors", marked.whole)
    whole = open_model(file)
    assert isinstance(whole, models.Model)
    state = marked.whole.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())


def test_what_does_not_belong_together_is_refused(marked: Any, tmp_path: Path) -> None:
    client, server = save_model(tmp_path / "run", marked.halves)
    (whole,) = save_model(tmp_path / "whole.safetensors", marked.whole)
    with pytest.raises(AttackError, match="server half"):
        open_model(server)
    with pytest.raises(AttackError, match="should hold a server half"):
        open_model(client, server=client)
    with pytest.raises(AttackError, match="whole model"):
        open_model(whole, server=server)
    with pytest.raises(AttackError, match="directory"):
        open_model(tmp_path / "run", server=server)
    with pytest.raises(SuspectError, match="not a file"):
        open_model(tmp_path)
    other = tmp_path / "other.safetensors"
    models.save(other, models.split(marked.whole, "pool1")[1])
    with pytest.raises(ModelError, match="does not fit"):
        open_model(client, server=other)


def test_nothing_is_overwritten(marked: Any, tmp_path: Path) -> None:
    save_model(tmp_path / "run", marked.halves)
    (whole,) = save_model(tmp_path / "whole.safetensors", marked.whole)
    for path, directory in ((tmp_path / "run", True), (whole, False), (tmp_path, False)):
        with pytest.raises(AttackError, match="never overwritten"):
            check_target(path, directory=directory)
    with pytest.raises(AttackError, match="need a directory"):
        check_target(whole, directory=True)
    with pytest.raises(AttackError, match="make it first"):
        check_target(tmp_path / "no" / "place", directory=True)
    check_target(tmp_path, directory=True)
    check_target(tmp_path / "new.safetensors", directory=False)
