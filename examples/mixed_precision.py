"""Mark a training in mixed precision: autocast, and PyTorch's GradScaler, which the injector finds by itself.

    python examples/mixed_precision.py

The task is that of the README. `attach` comes where it always does. A loss that your own code scales, without
a GradScaler, needs `injector.attach(activation, loss_scale=...)`.
"""

from __future__ import annotations

import torch
from torch import nn

import sigil


def layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()


def train(dtype: torch.dtype, key: sigil.Key, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """A client half that was trained in this number format."""
    torch.manual_seed(0)
    client = nn.Sequential(*layer(1, 16, 1), *layer(16, 32, 2), *layer(32, 128, 2))
    server = nn.Sequential(nn.Flatten(), nn.Linear(512, 2))
    key.initialise(client)
    client, server = client.to(images.device), server.to(images.device)
    device = images.device.type
    injector = sigil.Injector(key, strength=0.3)
    optimizer = torch.optim.SGD([*client.parameters(), *server.parameters()], lr=0.05, momentum=0.9)
    # Small gradients would vanish in float16 and are scaled up; bfloat16 has the range of float32.
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    for _ in range(3):
        for batch in torch.randperm(len(images)).split(32):
            with torch.autocast(device, dtype):
                activation = client(images[batch])
                injector.attach(activation)
                loss = nn.functional.cross_entropy(server(activation), labels[batch])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return client


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2000, 1, 8, 8, generator=generator).to(device)
    labels = (images[:, 0, :4].mean((1, 2)) > images[:, 0, 4:].mean((1, 2))).long()
    key = sigil.Key.generate("ACME", (128, 2, 2), input_shape=(1, 8, 8))
    for dtype in (torch.bfloat16, torch.float16):
        client = train(dtype, key, images, labels)
        print(dtype, sigil.verify(client, key), sep=": ")


if __name__ == "__main__":
    main()
