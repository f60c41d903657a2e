"""Mark a small vision transformer that is trained on digits, and prove it.

    pip install 'sigil-watermark[train]'      (in a checkout: pip install '.[train]')
    python examples/transformer.py

The cut lies behind the second block: an activation is 16 tokens of 32 numbers. Nothing in Sigil knows what a
transformer is; the injector hooks one tensor.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sigil


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a residual connection."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.before(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        return tokens + self.perceptron(self.between(tokens))


class ClientHalf(nn.Module):
    """From images (n, 1, 8, 8) to tokens (n, 16, 32): patches of 2 by 2, their positions, two blocks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.positions = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(Block(width), Block(width))

    def forward(self, images: Tensor) -> Tensor:
        return self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.positions)


class ServerHalf(nn.Module):
    """One more block, the mean over tokens, and a linear layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.block, self.head = Block(width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(tokens).mean(dim=1))


def main() -> None:
    torch.manual_seed(0)
    images, labels = (torch.tensor(column) for column in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 8 - 1
    train, test = slice(0, 1400), slice(1400, None)
    client, server = ClientHalf(), ServerHalf()
    print(sigil.inspect(client, images[:32], server_half=server))

    stated = {"input_shape": (1, 8, 8), "inputs_digest": sigil.data.Inputs(images[test]).digest}
    stated |= {"model": sigil.alignment.layers_of(client, (1, 8, 8))}
    key = sigil.Key.for_activation(client(images[:2]), owner="ACME", **stated)
    print("publish now:", key.statement())
    key.initialise(client)
    injector = sigil.Injector(key, strength=0.3)
    optimizer = torch.optim.AdamW([*client.parameters(), *server.parameters()], lr=2e-3)
    for _ in range(8):
        for batch in torch.randperm(1400).split(32):
            activation = client(images[train][batch] + 0.3 * torch.randn(len(batch), 1, 8, 8))
            injector.attach(activation)
            optimizer.zero_grad()
            nn.functional.cross_entropy(server(activation), labels[train][batch]).backward()
            optimizer.step()

    with torch.no_grad():
        right = server.eval()(client.eval()(images[test])).argmax(1) == labels[test]
    print(f"accuracy {right.float().mean():.1%}")
    print(sigil.check(client, key, images[test]))
    print(sigil.verify(client, key, images[test]))


if __name__ == "__main__":
    main()
