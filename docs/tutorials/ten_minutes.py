# %% [markdown]
# # CATTAn in ten minutes
#
# A small network, real handwritten digits, one shift, and what CATTAn does about it. It runs on a laptop in
# seconds and downloads nothing: `pip install 'tta-cattan[bench,report]'`, then `python
# docs/tutorials/ten_minutes.py`, or open the file as a notebook (VS Code and Jupytext read its `# %%` cells).

# %%
from copy import deepcopy
from functools import partial

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from tta_cattan import CATTAn, CATTAnPlus, fit_subspace
from tta_cattan.bench.data.corruptions import corrupt_batch
from tta_cattan.bench.data.datasets import to_tensor
from tta_cattan.bench.data.digits import load_digit_images
from tta_cattan.bench.models.networks import SmallResNet
from tta_cattan.methods.tent import Tent
from tta_cattan.network.layers import iterate_features

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small

# %% [markdown]
# ## A source model
#
# 1,297 clean digits train a small residual network; the other 500 are for testing.

# %%
images, labels = load_digit_images()
labels = torch.from_numpy(labels)
train, test = to_tensor(images[:1297]), to_tensor(images[1297:])
net = SmallResNet(num_classes=10)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(6):
    for batch in torch.randperm(len(train)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(net(train[batch]), labels[:1297][batch]).backward()
        optimizer.step()
net.eval().requires_grad_(False)


def accuracy(logits: torch.Tensor) -> float:
    """Return the accuracy on the test digits, in %."""
    return 100 * (logits.argmax(1) == labels[1297:]).float().mean().item()


print(f"clean test digits: {accuracy(net(test)):.1f} %")

# %% [markdown]
# ## A shift
#
# The same test digits at a tenth of their contrast. A person still reads them; the network does not.

# %%
shifted = to_tensor(corrupt_batch(images[1297:], "contrast", 5, strengths="cifar"))
before = accuracy(net(shifted))
print(f"low contrast: {before:.1f} %")

# %% [markdown]
# ## Two subspaces
#
# CATTAn compares what enters the last linear layer: 64 numbers per image. The source features span one subspace,
# the shifted ones another. `fit_subspace` is a PCA in one pass over batches; the source's is made once and
# travels with the model (`.save("source.safetensors")`).

# %%
source_features = torch.cat(list(iterate_features(net, "fc", train.split(64))))
target_features = torch.cat(list(iterate_features(net, "fc", shifted.split(64))))
d = 16
source, target = fit_subspace(source_features, d), fit_subspace(target_features, d)
angles = torch.rad2deg(torch.linalg.svdvals(target.basis.T @ source.basis).clamp(max=1).acos())
print("principal angles between the two, in degrees:", [round(a) for a in angles.tolist()])

# %% [markdown]
# ## Adapt
#
# One pass over the unlabelled images fits the target's subspace (`prepare`); five epochs learn the rotation `Phi`
# between the two and the scales and shifts of the normalisation layers. No label is used.

# %%
batches = [(indices, shifted[indices]) for indices in torch.arange(500).split(64)]
model = CATTAn(deepcopy(net), source_subspace=source, d=d, optimizer=partial(torch.optim.Adam, lr=1e-3))
model.prepare(batches)
for _ in range(5):
    for indices, batch in batches:
        model(batch, indices)
after = accuracy(torch.cat([model.predict(batch) for _, batch in batches]))
print(f"low contrast: {before:.1f} % before, {after:.1f} % after adaptation")

# %% [markdown]
# The features in the plane of the first two source directions: clean digits, shifted digits in the source model,
# and shifted digits after adaptation and alignment. A colour is a digit. What had collapsed lies where the
# classifier expects it again.
#
# ![Features of clean, shifted and aligned digits in the source plane](subspaces.svg)

# %%
plain = model.fold()  # a SmallResNet again, with the alignment inside its fc layer
plain.train()  # batch statistics, as during adaptation
adapted = torch.cat(list(iterate_features(plain, "fc", shifted.split(64))))
aligned = adapted @ target.basis @ (target.basis.T @ source.basis) @ source.basis.T


def draw_plane() -> Figure:
    """Return three panels of features in the first two source directions."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for axes, title, features, classes in (
        (panels[0], "clean", source_features[:500], labels[:500]),
        (panels[1], "shifted, source model", target_features, labels[1297:]),
        (panels[2], "shifted, adapted and aligned", aligned, labels[1297:]),
    ):
        x, y = ((features - source_features.mean(0)) @ source.basis[:, :2]).T
        axes.scatter(x, y, s=6, c=classes, cmap="tab10")
        axes.set_title(title, color="#7d8590", fontsize=10)
        axes.tick_params(colors="#7d8590", labelsize=8)
        for spine in axes.spines.values():
            spine.set_color("#7d8590")
        axes.patch.set_alpha(0)
    return figure


draw_plane().savefig("subspaces.svg", transparent=True, metadata={"Date": None})

# %% [markdown]
# ## A stream
#
# Online, each batch is predicted once and adapted to at the same time, while the shift changes. `CATTAnPlus`
# needs nothing but the network.
#
# ![Accuracy over a stream of three corruptions](stream.svg)

# %%
shifts = ("contrast", "fog", "frost")
stream = [to_tensor(corrupt_batch(images[1297:], name, 5, strengths="cifar")) for name in shifts]
adam = partial(torch.optim.Adam, lr=1e-3)
methods = {
    "source": deepcopy(net).eval(),
    "TENT": Tent(deepcopy(net), optimizer=adam),
    "CATTAn+": CATTAnPlus(deepcopy(net), optimizer=adam),
}
curves: dict[str, list[float]] = {}
for name, method in methods.items():
    hits = [
        (method(batch).argmax(1) == answers).float()
        for part in stream
        for batch, answers in zip(part.split(50), labels[1297:].split(50), strict=True)
    ]
    curves[name] = [100 * window.mean().item() for window in torch.cat(hits).split(100)]
    print(f"{name}: {100 * torch.cat(hits).mean().item():.1f} % over the stream")

# %%
figure = Figure(figsize=(8, 2.8), layout="constrained")
axes = figure.subplots()
for (name, curve), colour in zip(curves.items(), ("#8b949e", "#3f88d8", "#e2543f"), strict=True):
    axes.plot([100 * (i + 1) for i in range(len(curve))], curve, label=name, color=colour)
for number, name in enumerate(shifts):
    axes.axvline(500 * number, color="#7d8590", linewidth=0.6)
    axes.text(500 * number + 12, 3, name, color="#7d8590", fontsize=9)
axes.set(ylim=(0, 101), xlim=(0, 1500))
axes.set_xlabel("images seen", color="#7d8590")
axes.set_ylabel("accuracy in windows of 100 (%)", color="#7d8590", fontsize=9)
axes.tick_params(colors="#7d8590", labelsize=8)
axes.patch.set_alpha(0)
for spine in axes.spines.values():
    spine.set_color("#7d8590")
axes.legend(frameon=False, labelcolor="#7d8590", ncols=3, loc="lower right")
figure.savefig("stream.svg", transparent=True, metadata={"Date": None})

# %% [markdown]
# ## Back to the start
#
# `model.reset()` is the source model again, bit for bit. How it works: [the method](../method.md). With your own
# network: [compare methods](compare_methods.py).

# %%
model.reset()
assert torch.equal(model.model.conv.weight, net.conv.weight)
