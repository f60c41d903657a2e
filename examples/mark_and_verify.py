# %% [markdown]
# # Mark a model, lose it, prove whose it is
#
# You run the server of a split training: a client holds the images, the labels and the first half of a
# network, and you hold the second half. This notebook marks what the client trains, by nothing but the
# gradients that you return, and proves afterwards that a copy is yours. It takes about half a minute on a
# processor.
#
# ```
# pip install 'sigil-watermark[train]'
# ```

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import sigil
from sigil.data import Inputs

torch.manual_seed(0)
images, labels = (torch.tensor(column) for column in load_digits(return_X_y=True))
images = images.float().view(-1, 1, 8, 8) / 8 - 1
train, test = slice(0, 1400), slice(1400, None)


# %% [markdown]
# ## Two halves, and a look at the cut
#
# The *cut* is where the network is divided. `sigil.inspect` says before the training whether it can carry
# a mark that can be proven later.


# %%
def layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()


def make_halves() -> tuple[nn.Module, nn.Module]:
    client = nn.Sequential(*layer(1, 16, 1), *layer(16, 32, 2), *layer(32, 128, 2))
    server = nn.Sequential(nn.Flatten(), nn.Linear(512, 10))
    return client, server


client, server = make_halves()
print(sigil.inspect(client, images[:64], server_half=server))

# %% [markdown]
# ## A key, and its public statement
#
# The key is secret. Its statement is public: publish it *before* the training, so that nobody can say
# later that the key was made to fit the model. It names the images on which the mark will be read, by
# their digest, so that these cannot be chosen afterwards either.

# %%
key = sigil.Key.for_activation(
    client(images[:2]), owner="ACME", input_shape=(1, 8, 8), inputs_digest=Inputs(images[test]).digest
)
print(key.statement()[:120], "…")

# %% [markdown]
# ## Train, with one more line
#
# `injector.attach` is all that marking adds to the loop. We train a second model without it, for
# comparison. The *watermark success rate* (WSR) is the share of the key's bits that a model answers
# rightly: about one half by chance.


# %%
def fit(injector: sigil.Injector | None, epochs: int = 6) -> tuple[nn.Module, nn.Module, list[float]]:
    torch.manual_seed(1)
    client, server = make_halves()
    if injector is not None:
        key.initialise(client)  # the weights begin as the key draws them: a second proof
    parameters = [*client.parameters(), *server.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)
    rates = []
    for _ in range(epochs):
        client.train()
        for batch in torch.randperm(1400).split(32):
            activation = client(images[batch] + 0.5 * torch.randn(len(batch), 1, 8, 8))
            if injector is not None:
                injector.attach(activation)  # the line
            loss = nn.functional.cross_entropy(server(activation), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rates.append(sigil.verify(client, key, images[test]).wsr)
    return client.eval(), server.eval(), rates


def accuracy(client: nn.Module, server: nn.Module) -> float:
    with torch.no_grad():
        right = server(client(images[test])).argmax(1) == labels[test]
    return float(right.float().mean())


marked, marked_server, marked_rates = fit(sigil.Injector(key, strength=0.3))
clean, clean_server, clean_rates = fit(None)
print(f"accuracy with the mark    {accuracy(marked, marked_server):.1%}")
print(f"accuracy without the mark {accuracy(clean, clean_server):.1%}")

# %%
figure, axes = plt.subplots(figsize=(5, 2.6), dpi=80)
axes.plot(range(1, 7), marked_rates, marker="o", label="marked")
axes.plot(range(1, 7), clean_rates, marker="o", label="without a mark")
axes.set(xlabel="epoch", ylabel="WSR", ylim=(0.4, 1.02))
axes.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# ## The verdict
#
# The verdict is a p-value: the probability that a key which has nothing to do with the model fits as
# well, corrected for everything that could have been chosen. The model without a mark must not be proven,
# and neither must somebody else's key.

# %%
mallory = sigil.Key.for_activation(client(images[:2]), owner="Mallory", input_shape=(1, 8, 8))
print("marked:       ", sigil.verify(marked, key, images[test]).sentence())
print("without mark: ", sigil.verify(clean, key, images[test]).sentence())
print("another's key:", sigil.verify(marked, mallory, images[test], inputs_from="judge").sentence())
