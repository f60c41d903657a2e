"""The live page: the numbers of metrics.jsonl, read-only, and only for those who may see it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from sigil import watching
from sigil.errors import NetworkError
from sigil.federation.run import train
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.rules import Price
from sigil.transport.limits import Reason
from sigil.transport.metrics import ClientNow, Metrics
from sigil.watching import LOG_LINES, PAGE, Board, LivePage


def get(page: LivePage, path: str = "", **options: Any) -> httpx.Response:
    return httpx.get(f"{page.address}{path}", trust_env=False, **options)


def test_the_numbers_on_the_page_are_those_of_the_run(tmp_path: Path) -> None:
    settings = make(
        {
            "model": {"name": "vgg11", "width": 4, "cut": "pool2"},
            "data": {"name": "digits", "train_limit": 80, "test_limit": 20},
            "federation": {"clients": 2, "rounds": 2, "local_epochs": 1, "batch_size": 16},
            "watermark": {"bits": 16, "strength": 0.5, "probes": 32},
            "run": {"threads": 1, "workers": 1, "device": "cpu"},
        }
    )
    key = Key.generate("ACME", shape=(8, 2, 2), bits=16, seed=bytes(32))
    shown = Board()
    with LivePage(shown) as page:
        assert get(page, "state.json").json()["rounds"] == 0
        train(settings, tmp_path / "run", key=key, progress=shown)
        state = get(page, "state.json").json()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert state["rows"] == rows
    # Corrected as for a key that states neither cut nor input shape: 64 places, 2^80 keys, 4 tests.
    for row in rows:
        assert row["log10_p"] == Price(80, cuts=64).corrected(row["log10_p_before"]) == 0.0
        assert row["alpha"] == 3e-7
    assert "corrected (proof:" in PAGE.read_text("utf-8")
    assert (state["done"], state["rounds"], state["over"]) == (2, 2, True)


def test_a_run_that_goes_on_shows_its_earlier_rounds_too() -> None:
    shown = Board()
    rows = [{"round": 1, "loss": 2.0}]
    shown.on_start("run", first_round=1, rounds=3, images_per_round=10, rows=rows)
    shown.on_round({"round": 2, "loss": 1.0})
    assert [row["round"] for row in shown.state()["rows"]] == [1, 2]


def test_time_left_is_without_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now, metrics = [0.0], Metrics()
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    shown = Board(metrics)
    shown.on_start("run", first_round=0, rounds=5, images_per_round=10)
    assert shown.state()["seconds_left"] is None
    now[0] = 130.0
    metrics.waited(100.0)
    shown.on_round({"round": 1})
    shown.on_step(5)
    assert shown.state()["seconds_left"] == pytest.approx(30 / 1.5 * 3.5)


def test_a_round_that_took_long_for_a_lost_client_does_not_count_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time from a client's return until it trains is no waiting, and the page said 45 s where it took 17."""
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    shown = Board(Metrics())
    shown.on_start("run", first_round=2, rounds=12, images_per_round=10, rows=[{"round": 1}, {"round": 2}])
    for number, seconds in enumerate((3.0, 60.0, 4.0), 3):
        now[0] += seconds
        shown.on_round({"round": number})
    shown.on_step(5)
    assert shown.state()["seconds_left"] == pytest.approx(4.0 * 6.5)


def test_clients_refusals_and_the_end_of_the_log_are_shown() -> None:
    metrics = Metrics()
    metrics.now = (ClientNow(1, "training", 64, 12.5),)
    for _ in range(2):
        metrics.refused(Reason.ORDER)
    shown = Board(metrics)
    logger = logging.getLogger("sigil.test")
    logger.addHandler(shown.handler)
    for number in range(LOG_LINES + 5):
        logger.warning("line %d", number)
    state = shown.state()
    assert state["clients"] == [{"client": 1, "state": "training", "images": 64, "images_per_second": 12.5}]
    assert state["refusals"] == {"streams": {"order": 2}, "connections": {}, "updates": {}}
    assert len(state["log"]) == LOG_LINES
    assert state["log"][-1].endswith(f" line {LOG_LINES + 4}")


def test_the_page_is_one_file_without_anything_from_elsewhere() -> None:
    text = PAGE.read_text("utf-8")
    assert not re.search(r"""(src|href)\s*=|@import|url\(""", text)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in text, "names in a log may hold markup"


def test_it_is_read_only_and_for_this_machine() -> None:
    with LivePage(Board()) as page:
        assert page.address.startswith("http://127.0.0.1:")
        answer = get(page)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert httpx.request(method, page.address, trust_env=False).status_code == 405
        # A web page elsewhere whose name was made to lead here.
        assert get(page, headers={"host": "evil.example"}).status_code == 403
        assert get(page, "runs").status_code == 404


def test_elsewhere_a_token_is_needed() -> None:
    with LivePage(Board(), host="0.0.0.0") as page:
        base, token = page.address.rsplit("/", 1)
        base = base.replace("0.0.0.0", "127.0.0.1")
        assert len(token) >= 20
        for path, status in (
            ("/", 404),
            ("/state.json", 404),
            (f"/{token[:-1]}", 404),
            (f"/{token}", 200),
            (f"/{token}/", 200),
            (f"/{token}/state.json", 200),
        ):
            assert httpx.get(base + path, trust_env=False).status_code == status, path


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with LivePage(Board()) as page:
        port = int(page.address.split(":")[2].strip("/"))
        with pytest.raises(NetworkError, match="choose another --page-port"):
            LivePage(Board(), port=port)
