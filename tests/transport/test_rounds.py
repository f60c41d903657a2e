"""What came of a round: averages of those who finished, in the order of their index."""

from __future__ import annotations

import pytest
import torch

from sigil.errors import TrainingError
from sigil.transport import ClientOutcome, Reason, RoundOutcome, Status


def client(index: int, value: float, weight: float, status: Status = Status.FINISHED) -> ClientOutcome:
    done = status is Status.FINISHED
    return ClientOutcome(
        client=index,
        status=status,
        reason=None if done else Reason.ORDER,
        steps=3,
        images=int(2 * weight),
        weight=weight,
        injections=[],
        state={"w": torch.tensor([value])} if done else None,
    )


def outcome(*clients: ClientOutcome) -> RoundOutcome:
    return RoundOutcome(1, {one.client: one for one in clients})


def test_the_average_is_over_those_who_finished() -> None:
    closed = outcome(client(0, 1.0, 10), client(1, 100.0, 10, Status.EXPELLED), client(2, 4.0, 20))
    assert closed.finished == [0, 2]
    assert closed.server_state()["w"] == torch.tensor([3.0])


def test_the_average_can_be_over_fewer_but_not_over_others() -> None:
    closed = outcome(client(0, 1.0, 10), client(1, 100.0, 10, Status.LOST), client(2, 4.0, 20))
    assert closed.server_state([2, 1])["w"] == torch.tensor([4.0])
    with pytest.raises(TrainingError, match="nothing to average"):
        closed.server_state([1])
