# %% [markdown]
# # Compare methods on your own model
#
# Which method helps *your* network on *your* shift, and what does it cost? A network, a list of batches, every
# method under the same conditions. `pip install tta-cattan`, then `python docs/tutorials/compare_methods.py`.

# %%
import time
from copy import deepcopy
from functools import partial

import torch
from torch import nn
from torchvision.models import resnet18

from tta_cattan import ADAPTATION_REGISTRY

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## Your model and your data
#
# Any `nn.Module` that ends in a linear layer, and batches of what it is to predict. This stand-in learns four
# kinds of stripes in seconds; the target has the same stripes with another brightness, contrast and
# noise. Put your checkpoint and your loader here.


# %%
def stripes(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of four directions of stripes, and their labels."""
    y = torch.randint(0, 4, (n,))
    angle = y * torch.pi / 4 + 0.15 * torch.randn(n)
    grid = torch.linspace(-1, 1, 32)
    place = angle.cos()[:, None, None] * grid[None, None] + angle.sin()[:, None, None] * grid[None, :, None]
    waves = 0.5 + 0.5 * torch.sin(12 * place + 6.3 * torch.rand(n)[:, None, None])
    return waves[:, None].expand(-1, 3, -1, -1) + 0.1 * torch.randn(n, 3, 32, 32), y


net = resnet18(num_classes=4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for _ in range(12):
    x, y = stripes(32)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
net.eval()

target = [(0.35 * x + 0.5 + 0.12 * torch.randn_like(x), y) for x, y in (stripes(32) for _ in range(4))]

# %% [markdown]
# ## Every method, the same stream
#
# `ADAPTATION_REGISTRY` holds the methods by name, yours too once it is registered. CATTAn takes a source subspace
# where there is one; without one it uses the row space of your classifier. Each gets its own copy of the network.

# %%
adam = partial(torch.optim.Adam, lr=1e-3)
print(f"{'method':14}{'accuracy':>9}{'ms/image':>10}")
found = {}
for name in ADAPTATION_REGISTRY.registered_names():
    build = ADAPTATION_REGISTRY.get(name)
    options = {"d": 4} if name == "cattan" else {}
    method = build(deepcopy(net), optimizer=adam, **options)
    started, right = time.perf_counter(), 0
    for x, y in target:
        right += int((method(x).argmax(1) == y).sum())
    spent = time.perf_counter() - started
    found[name] = right / 128
    print(f"{name:14}{100 * found[name]:8.1f}%{1e3 * spent / 128:10.1f}")

# %% [markdown]
# ## What to look at
#
# - **Source against Norm**: is the shift in the statistics of the normalisation layers? Then most methods help.
# - **Accuracy against cost**: an update costs two to three predictions.
# - **Chance**: 128 images decide differences of nine points, no smaller ones. `tta-cattan compare` with
#   `tta-cattan report` does the same with confidence intervals, several seeds and resumable runs, on [data in
#   folders](../data.md).
#
# To keep the result: `method.fold()` returns a plain network, `method.state_dict()` a checkpoint that continues
# bit for bit.

# %%
assert set(found) == set(ADAPTATION_REGISTRY.registered_names())
