"""Give each recipient a copy of its own, and find out whose copy turned up.

python examples/issue_copies.py
"""

from __future__ import annotations

import tempfile

import torch
from torch import nn

import sigil

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
key = sigil.Key.for_activation(model(torch.zeros(1, 3, 8, 8)), owner="ACME")

with tempfile.TemporaryDirectory() as register:
    # The owner's side: one copy per recipient, and a register to be kept private.
    copies = sigil.Imprint(key, model)
    handed_out = {name: copies.issue(name) for name in ("Hospital B", "Clinic C", "Institute D")}
    copies.save(register)

    # Somebody disturbs every weight of a copy by a tenth of its size, and it turns up.
    suspect = handed_out["Clinic C"]
    with torch.no_grad():
        for weight in suspect.parameters():
            weight.mul_(1 + 0.1 * torch.randn_like(weight))

    found = sigil.trace(suspect, key, register)
    print(found)
    for recipient in found.recipients:
        print(f"{recipient.name}: log10 p {recipient.log10_p_before:.1f} before correction, ", end="")
        print(f"{recipient.log10_p:.1f} corrected, level {found.log10_level:.1f}")
