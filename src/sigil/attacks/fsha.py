"""Feature-space hijacking (FSHA; Pasquini et al., CCS 2021): a malicious server, to test detectors with.

The server owns public images of the same kind as the client's. It trains an autoencoder on them, and a
discriminator D that tells the encoder's features z_public from the activations z_private that arrive. Instead
of the gradient of the task it returns that of −D(z_private): the client half learns to produce features of
the server's own encoder, which the server's decoder turns back into the client's images.

With the means over a batch, ẑ a random point between a public and a private feature (Wasserstein GAN)::

    L_autoencoder   = ‖decode(encode(x_public)) − x_public‖²
    L_discriminator = D(z_private) − D(z_public) + 500 (‖∇D(ẑ)‖ − 1)²
    L_client        = −D(z_private)

As in the published code the norm is one per channel of ẑ, over height and width.

The logits that the client sees come from an honest server half, trained as agreed on whatever features
arrive.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigil import eager
from sigil.errors import AttackError
from sigil.federation.messages import CutGradient, LogitGradient
from sigil.federation.server import Server
from sigil.seeds import derive, generator

PenaltyOver = Literal["channel", "all"]


class FSHA:
    """The attacker: autoencoder, discriminator, and the gradient that hijacks a client half.

    ``public`` are the attacker's own images, float (n, C, H, W), normalised like the clients' inputs.
    ``shape`` is (c, h, w) at the cut, with H = h·2^i and W = w·2^i. ``width`` is the number of channels of
    decoder and discriminator; all networks learn with Adam, ``lr`` being the rate of the autoencoder. One
    attacker serves all clients and all rounds. ``penalty_over="all"`` takes one norm per feature over all of
    its axes instead of one per channel.

    The encoder is one convolution: the client half must come to compute the same, so it should be simple.

    The gradient of L_client is returned as it is, which suits clients that use Adam like the published
    attack's. Those that use SGD with a large learning rate take steps that the discriminator cannot follow:
    ``strength`` sets the norm of what is returned, over a batch, relative to that of the honest gradient.
    """

    def __init__(
        self,
        public: Tensor,
        shape: tuple[int, ...],
        *,
        width: int = 32,
        lr: float = 1e-3,
        discriminator_lr: float = 1e-3,
        penalty: float = 500.0,
        penalty_over: PenaltyOver = "channel",
        strength: float | None = None,
        seed: int = 0,
    ) -> None:
        halvings = _halvings(tuple(public.shape), shape)
        self.public = public
        self.penalty = penalty
        self.penalty_over = penalty_over
        self.strength = strength
        self._random = generator(seed, "public images")
        channels = public.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "hijacker"))
            self.encoder = _encoder(channels, shape[0], halvings)
            self.decoder = _decoder(shape[0], channels, width, halvings)
            self.discriminator = _discriminator(shape, width)
        for network in (self.encoder, self.decoder, self.discriminator):
            network.to(public.device)
        autoencoder = [*self.encoder.parameters(), *self.decoder.parameters()]
        fused = public.device.type in ("cpu", "cuda")
        self._autoencoder_optimizer = eager.Adam(autoencoder, lr=lr, fused=fused)
        self._discriminator_optimizer = eager.Adam(
            self.discriminator.parameters(), lr=discriminator_lr, betas=(0.5, 0.9), fused=fused
        )

    def server(self, half: nn.Module, optimizer: torch.optim.Optimizer, **arguments: Any) -> HijackingServer:
        """A server of this attacker, made from what :class:`~sigil.federation.Server` takes."""
        return HijackingServer(self, half, optimizer, **arguments)

    def hijack(self, activation: Tensor, gradient: Tensor) -> Tensor:
        """Learn from one batch of activations and return what goes back instead of its gradient."""
        private = activation.detach().float()
        chosen = torch.randint(len(self.public), (len(private),), generator=self._random)
        public = self._encode(self.public[chosen.to(self.public.device)])
        self._train_discriminator(public, private)
        hijacking = self.client_gradient(private)
        if self.strength is not None:
            wanted = self.strength * torch.linalg.vector_norm(gradient.float())
            hijacking *= wanted / torch.linalg.vector_norm(hijacking).clamp_min(1e-12)
        return hijacking.to(gradient.dtype)

    @torch.no_grad()
    def decode(self, activation: Tensor) -> Tensor:
        """What the attacker sees: images (n, C, H, W) from activations (n, c, h, w)."""
        images: Tensor = self.decoder(activation.float())
        return images

    def client_gradient(self, private: Tensor) -> Tensor:
        """∂ L_client / ∂ z_private, float32 (n, c, h, w)."""
        leaf = private.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(-self.discriminator(leaf).mean(), leaf)
        return gradient

    def gradient_penalty(self, public: Tensor, private: Tensor) -> Tensor:
        """The mean of (‖∇D(ẑ)‖ − 1)² at one random point between each public and private feature."""
        mix = torch.rand(len(public), 1, 1, 1, generator=self._random).to(public.device)
        between = (mix * public + (1 - mix) * private).requires_grad_()
        (slope,) = torch.autograd.grad(self.discriminator(between).sum(), between, create_graph=True)
        rows = slope.flatten(2) if self.penalty_over == "channel" else slope.flatten(1)
        return (rows.norm(dim=-1) - 1).square().mean()

    def _encode(self, images: Tensor) -> Tensor:
        """One step of the autoencoder on public images; their features."""
        features = self.encoder(images)
        loss = F.mse_loss(self.decoder(features), images)
        self._autoencoder_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._autoencoder_optimizer.step()
        return features.detach()

    def _train_discriminator(self, public: Tensor, private: Tensor) -> None:
        opinion = self.discriminator(torch.cat([private, public]))
        difference = opinion[: len(private)].mean() - opinion[len(private) :].mean()
        loss = difference + self.penalty * self.gradient_penalty(public, private)
        self._discriminator_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._discriminator_optimizer.step()


class HijackingServer(Server):
    """A server that answers like an honest one, but whose gradients serve the attacker."""

    def __init__(
        self, attacker: FSHA, half: nn.Module, optimizer: torch.optim.Optimizer, **arguments: Any
    ) -> None:
        super().__init__(half, optimizer, **arguments)
        self.attacker = attacker

    def backward(self, message: LogitGradient) -> CutGradient:
        """Train the honest half, so that the logits stay plausible, and return the hijacking gradient."""
        activation = self._activation
        honest = super().backward(message)
        assert activation is not None
        return CutGradient(self.attacker.hijack(activation.detach(), honest.values))


def _halvings(images: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """How often the images' sides are halved on the way to the cut."""
    if len(images) == 4 and len(shape) == 3:
        for halvings in range(16):
            if (shape[1] << halvings, shape[2] << halvings) == images[2:]:
                return halvings
    raise AttackError(
        f"FSHA cannot map public images of the shape {images} to features of {shape}; it needs (n, C, H, W) "
        "and (c, h, w), with sides that are halved some times."
    )


def _encoder(channels: int, features: int, halvings: int) -> nn.Sequential:
    step = 2**halvings
    # Scaled and non-negative like most client halves' outputs, which leaves less for the client to learn.
    return nn.Sequential(
        nn.Conv2d(channels, features, step + 2, stride=step, padding=1), nn.BatchNorm2d(features), nn.ReLU()
    )


def _decoder(features: int, channels: int, width: int, halvings: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(features, width, 3, padding=1), nn.LeakyReLU(0.2)]
    for _ in range(halvings):
        layers += [nn.ConvTranspose2d(width, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))


def _discriminator(shape: tuple[int, ...], width: int) -> nn.Sequential:
    channels, height, side = shape
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.LeakyReLU(0.2)]
    while min(height, side) > 2:
        layers += [nn.Conv2d(width, width, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
        height, side = -(-height // 2), -(-side // 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * height * side, 1))
