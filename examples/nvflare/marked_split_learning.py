"""Split learning by NVIDIA FLARE's Collab API, with a server that marks what its clients train.

The server (`Owner`) holds the second half of a network and the secret key. Each client holds images, labels
and the first half, which split learning hands on from client to client and which never reaches the server.
"""

from __future__ import annotations

from pathlib import Path

import torch
from nvflare.collab import collab
from torch import Tensor, nn

import sigil
from sigil.logit_gradients import Loss, check_logit_gradient

STEPS, BATCH, TIMEOUT = 25, 32, 120.0
AGREED = Loss()  # cross-entropy, the mean over the batch


def layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()


def make_client_half() -> nn.Module:
    return nn.Sequential(*layer(1, 16, 1), *layer(16, 32, 2), *layer(32, 128, 2))


def make_server_half() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(512, 4))


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of the task: which quarter of a noisy 8 by 8 image is brighter?"""
    labels = torch.randint(4, (BATCH,), generator=generator)
    images = torch.randn(BATCH, 1, 8, 8, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[:, row : row + 4, column : column + 4] += 1.0
    return images, labels


class Owner:
    """The server: it answers each batch, and what it sends back carries the mark."""

    @collab.init
    def prepare(self) -> None:
        torch.manual_seed(0)
        self.half = make_server_half()
        self.optimizer = torch.optim.SGD(self.half.parameters(), lr=0.05, momentum=0.9)
        strength = float(collab.get_app_prop("strength"))
        self.injector = sigil.Injector(collab.get_app_prop("key"), strength) if strength else None

    @collab.main
    def run(self) -> list[str]:
        sites = list(collab.clients)
        before = ""  # the site that holds the newest client half
        for number in range(int(collab.get_app_prop("rounds")) * len(sites)):
            site = sites[number % len(sites)]
            site(timeout=TIMEOUT).train(before)
            before = site.name
        return [sites[0](timeout=TIMEOUT).keep(before)]

    @collab.publish
    def forward(self, activation: Tensor) -> Tensor:
        """The client's activation arrives; the logits go back."""
        self.activation = activation.detach().requires_grad_()
        if self.injector is not None:
            self.injector.attach(self.activation)  # the one line in the loop
        self.logits = self.half(self.activation)
        return self.logits.detach()

    @collab.publish
    def backward(self, gradient: Tensor) -> Tensor:
        """The loss's gradient at the logits arrives; the one at the activation goes back, marked."""
        check_logit_gradient(self.logits.detach(), gradient, AGREED)
        self.optimizer.zero_grad()
        self.logits.backward(gradient)
        self.optimizer.step()
        assert self.activation.grad is not None
        return self.activation.grad


class Client:
    """A site: its images and labels stay here, and so does its half, except for the client that is next."""

    @collab.init
    def prepare(self) -> None:
        torch.manual_seed(1)
        self.half = make_client_half()
        self.data = torch.Generator().manual_seed(int(collab.site_name.rpartition("-")[2]))

    @collab.publish
    def give(self) -> dict[str, Tensor]:
        """The half as this client left it."""
        return self.half.state_dict()

    @collab.publish
    def train(self, before: str) -> None:
        """Take the half from the client before, and train it on this client's data."""
        self._take(before)
        optimizer = torch.optim.SGD(self.half.parameters(), lr=0.05, momentum=0.9)
        owner = collab.server(timeout=TIMEOUT)
        self.half.train()
        for _ in range(STEPS):
            images, labels = draw(self.data)
            activation = self.half(images)
            logits = owner.forward(activation.detach()).requires_grad_()
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.zero_grad()
            activation.backward(owner.backward(logits.grad))
            optimizer.step()

    @collab.publish
    def keep(self, before: str) -> str:
        """Walk away with the trained half: what a thief would do."""
        self._take(before)
        copy = Path(collab.get_app_prop("copy"))
        torch.save(self.half.state_dict(), copy)
        return str(copy)

    def _take(self, before: str) -> None:
        if before and before != collab.site_name:
            self.half.load_state_dict(collab.get_clients([before])[0](timeout=TIMEOUT).give())
