"""A split-learning server of your own that marks what its clients train: PyTorch and Sigil, nothing else.

    python examples/own_server.py

Two clients hold data and the first layers of a network; the server holds the rest and never sees the clients'
layers. It looks at the cut before the training, makes a key, marks, and proves afterwards that a copy of the
clients' half is its own. A half that was trained without the mark is not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sigil

CLIENTS, ROUNDS, STEPS, BATCH = 2, 6, 25, 32


def layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()


def make_halves() -> tuple[nn.Module, nn.Module]:
    client = nn.Sequential(*layer(1, 16, 1), *layer(16, 32, 2), *layer(32, 128, 2))
    server = nn.Sequential(nn.Flatten(), nn.Linear(512, 4))
    return client, server


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of the task: which quarter of a noisy 8 by 8 image is brighter?"""
    labels = torch.randint(4, (BATCH,), generator=generator)
    images = torch.randn(BATCH, 1, 8, 8, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[:, row : row + 4, column : column + 4] += 1.0
    return images, labels


def average(halves: list[nn.Module]) -> dict[str, Tensor]:
    states = [half.state_dict() for half in halves]
    return {name: torch.stack([s[name].float() for s in states]).mean(0) for name in states[0]}


def train(key: sigil.Key | None) -> tuple[nn.Module, float]:
    """Train by split federated learning; returns the clients' half and its accuracy."""
    torch.manual_seed(0)
    client, server = make_halves()
    injector = None
    if key is not None:
        key.initialise(client)  # the clients begin with weights that the key draws: a second proof
        injector = sigil.Injector(key, strength=0.3)
    data = [torch.Generator().manual_seed(number) for number in range(CLIENTS)]
    for _ in range(ROUNDS):
        locals_ = []
        for generator in data:
            half, _ = make_halves()
            half.load_state_dict(client.state_dict())
            ours = torch.optim.SGD(server.parameters(), lr=0.05, momentum=0.9)
            theirs = torch.optim.SGD(half.parameters(), lr=0.05, momentum=0.9)
            for _ in range(STEPS):
                images, labels = draw(generator)
                # The client sends its activation; the server receives a tensor without its history.
                sent = half(images)
                activation = sent.detach().requires_grad_()
                if injector is not None:
                    injector.attach(activation)  # the one line in the loop
                # The client computes the loss, since the labels stay with it, and sends its gradient back.
                logits = server(activation)
                nn.functional.cross_entropy(logits, labels).backward()
                ours.step()
                sent.backward(activation.grad)
                theirs.step()
                ours.zero_grad()
                theirs.zero_grad()
            locals_.append(half)
        client.load_state_dict(average(locals_))
    with torch.no_grad():
        images, labels = draw(torch.Generator().manual_seed(99))
        right = server.eval()(client.eval()(images)).argmax(1) == labels
    return client, float(right.float().mean())


def main() -> None:
    client, server = make_halves()
    example, _ = draw(torch.Generator().manual_seed(0))
    print(sigil.inspect(client, example, server_half=server))

    layers = sigil.alignment.layers_of(client, (1, 8, 8))  # for these the key draws initial weights
    key = sigil.Key.for_activation(client(example), owner="ACME", input_shape=(1, 8, 8), model=layers)
    print("publish now:", key.statement())
    marked, accuracy = train(key)
    clean, without = train(None)
    print(f"accuracy {accuracy:.2f} with the mark, {without:.2f} without")
    print("marked:", sigil.verify(marked, key).sentence())
    print("clean: ", sigil.verify(clean, key).sentence())


if __name__ == "__main__":
    main()
