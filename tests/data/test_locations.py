from __future__ import annotations

from pathlib import Path

import pytest

from sigil.data.locations import cache_roots, data_directory
from sigil.errors import DataError


def test_argument_wins_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_DATA", "/from/environment")
    assert data_directory("/given", name="cifar10") == Path("/given")
    assert data_directory(None, name="cifar10") == Path("/from/environment")


def test_no_directory_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGIL_DATA", raising=False)
    with pytest.raises(DataError, match=r"--data-dir.*SIGIL_DATA.*sigil data fetch cifar10"):
        data_directory(None, name="cifar10")


def test_cache_lies_beside_the_data_then_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGIL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/cache")
    assert cache_roots(Path("/data")) == [Path("/data/.sigil-cache"), Path("/home/cache/sigil")]
    assert cache_roots(None) == [Path("/home/cache/sigil")]


def test_chosen_cache_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_CACHE", "/fast/disk")
    assert cache_roots(Path("/data")) == [Path("/fast/disk")]
